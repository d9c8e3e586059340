"""Fixtures of the fractal tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fractal_reference import small_config

from scaffold.fractals.categories import write_library
from scaffold.fractals.search import find_categories


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """categories.csv of three categories at scale 6, seed 42."""
    return write_library(find_categories(small_config()), tmp_path_factory.mktemp("library"))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study file of one run, that of ``small_config``."""
    path = tmp_path / "study.yaml"
    path.write_text("runs: {small: {problem_scale: 6, unet_bottleneck_dim: 2, n_categories: 3}}\n")
    return path
