"""What runs on a GPU; on a machine without one each test is skipped with that reason."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import training_jobs


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA or HIP device"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of a data set of 16 volumes, with its study."""
    return training_jobs.dataset(tmp_path_factory)
