"""Runs the kernels of the gated stack on a GPU, or in Triton's interpreter."""

import importlib.util
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

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


@pytest.fixture(autouse=True)
def _products_that_round_by_value(device, monkeypatch):
    """Sum each of the interpreter's products in ascending order.

    NumPy's own picks its kernel, and with it the rounding, by the shapes and strides of a tile; a GPU's
    product of one element does not depend on its neighbours.
    """
    if device == "cuda":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(_self, a, b, d, _input_precision, _max_num_imprecise_acc):
        total = np.zeros_like(d.data)
        for k in range(a.data.shape[1]):
            total += a.data[:, k, None] * b.data[None, k, :]
        return TensorHandle(total + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
