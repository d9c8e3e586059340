"""Whole trainings, with the helpers that lie beside the unit tests of training."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import training_jobs


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of a data set of 16 volumes, with its study."""
    return training_jobs.dataset(tmp_path_factory)
