"""Runs the kernels on a GPU, or in Triton's interpreter."""

import importlib.util
import warnings

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device():
    """Where the kernels run; ``cpu`` means the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _quiet_interpreter():
    with warnings.catch_warnings():
        # NumPy warns of the overflows and invalid values that the tests provoke.
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture
def poisoned_memory():
    """Fill memory that PyTorch hands out without values with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4).isnan().all(), "control: memory is poisoned"
        yield
    finally:
        torch.use_deterministic_algorithms(False)
