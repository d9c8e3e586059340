"""Data sets that the tests of this folder share, made once a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_datasets import Made, make, small_config


@pytest.fixture(scope="session", params=["dense", "labels"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A data set of each kind of storage; not to be changed."""
    config = small_config(storage={"image": request.param})
    return make(config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A data set with ``storage.image: dense``; not to be changed."""
    return make(small_config(), tmp_path_factory.mktemp("dense"))


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Made], Path]:
    """Copy a data set, to be damaged."""
    return lambda made: Path(shutil.copytree(made.directory, tmp_path / "results" / "copy"))
