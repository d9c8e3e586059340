"""Runs the convolutions' kernels on a GPU, or in Triton's interpreter."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device():
    """Where the kernels run; ``cpu`` means the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"
