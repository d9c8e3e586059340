"""The model of bytes and operations that measurements are compared with."""

import pytest

from scaffold.kernels.gated_stack import model
from scaffold.kernels.gated_stack.layout import StackDims

ROWS = 2 * 1000
SEED = StackDims(2, 1000, 3, 32, 1)


def per_row(cost, dims):
    """Bytes without the weights, and products."""
    weights = 4 * dims.n_focus * (dims.m0**2 + dims.m1**2 + 2 * dims.channels * dims.gate_width)
    rows = dims.n_focus * dims.n_edge
    return (cost.bytes - weights) / rows, cost.flops / (2 * rows)


@pytest.mark.parametrize(("lmax", "relay", "least"), [(3, 8576, 3840), (1, 3456, 1536), (6, 16256, 7296)])
def test_bytes_of_a_row(lmax, relay, least):
    """A surface would be counted twice or not at all (values written out by hand)."""
    dims = StackDims(2, 1000, lmax, 32, 1)
    assert per_row(model.modelled("relay", dims), dims)[0] == relay
    assert per_row(model.minimum(dims), dims)[0] == least


def test_products_of_a_row():
    """A product would be counted twice or not at all (values written out by hand)."""
    assert per_row(model.minimum(SEED), SEED)[1] == 59_392
    assert per_row(model.modelled("relay", SEED), SEED)[1] == 59_392
    assert per_row(model.modelled("panel", SEED), SEED)[1] == 59_392
    assert per_row(model.modelled("fused", SEED), SEED)[1] == 53_248 + 10 * 3072


def test_surfaces_of_the_relay():
    """The figure that the fused kernels are to save."""
    production = StackDims(2, 646_000, 3, 32, 3)
    assert model.scratch_bytes("relay", production) == pytest.approx(2.15e9, rel=0.001)
    assert model.scratch_bytes("panel", production) == 0
