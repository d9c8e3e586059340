"""Whole trainings, with the helpers that lie beside the unit tests of training."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import training_jobs


def pytest_collection_modifyitems(items):
    # One worker, so that the undisturbed trainings that others are compared with are made once.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("trainings"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of a data set of 16 volumes, with its study."""
    return training_jobs.dataset(tmp_path_factory)
