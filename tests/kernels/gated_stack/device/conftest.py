"""The interpreter's products, made comparable with a GPU's."""

import numpy as np
import pytest


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
