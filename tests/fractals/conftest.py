"""Fixtures of the fractal tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fractal_reference import small_config

from scaffold.fractals.categories import write_library
from scaffold.fractals.search import find_categories

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.fixture(scope="session")
def scaffold_ranks() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a ``scaffold`` verb on a number of ranks through the mpiexec that belongs to this Python."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("there is no mpiexec beside this Python")

    def launch(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [mpiexec, "-n", ranks, sys.executable, "-m", "mpi4py", "-m", "scaffold", *arguments, "--ranks", ranks]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [str(part) for part in command], env=environment, capture_output=True, text=True, timeout=90, check=False
        )

    return launch
