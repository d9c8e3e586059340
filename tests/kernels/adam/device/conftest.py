"""Runs the kernels of Adam on a GPU, or in Triton's interpreter."""

import importlib.util
import warnings

import adam_cases
import pytest
import torch

from scaffold.kernels import ladder
from scaffold.kernels.adam import plan

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device():
    """Where the kernels run; ``cpu`` means the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _quiet_interpreter():
    with warnings.catch_warnings():
        # NumPy warns of the overflows and invalid values that the tests provoke.
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(autouse=True)
def _small_tile(monkeypatch):
    monkeypatch.setattr(plan, "TILE", adam_cases.TILE)


@pytest.fixture(autouse=True)
def _fresh_ladder():
    ladder.reset()
    yield
    ladder.reset()
