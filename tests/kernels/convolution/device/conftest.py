"""Runs the convolutions' kernels on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter; else not at all."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

if importlib.util.find_spec("triton") is None or not (
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device():
    """Where the kernels run; ``cpu`` means the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"
