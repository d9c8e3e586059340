"""Bytes and operations of one gated layer's backward, as written down before measuring.

Every surface counts once for each kernel that reads or writes it; what is read again by neighbouring
programs is taken to hit the L2 cache, and weights count once for all.
"""

from __future__ import annotations

from scaffold.kernels.bench import Cost
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Path

_FLOAT = 4


def minimum(dims: StackDims) -> Cost:
    """Return the least that any backward of a gated layer must do: each surface once, each product once."""
    return _cost(dims, columns=3 * dims.row, products=_blocks(dims) + 2 * _gates(dims))


def forward_minimum(dims: StackDims) -> Cost:
    """Return the same for the forward, which reads u and writes z and the next u."""
    return _cost(dims, columns=3 * dims.row, products=_blocks(dims) + _gates(dims))


def modelled(path: Path, dims: StackDims, block_n: int = 64) -> Cost:
    """Return what a path does.

    Args:
        path: ``relay``, ``fused`` or ``panel``.
        dims: the sizes.
        block_n: columns of a tile of ``fused``.
    """
    row, c, gate = dims.row, dims.channels, _gates(dims)
    if path == "relay":
        return _cost(dims, columns=6 * row + 2 * dims.gate_width + c, products=_blocks(dims) + 2 * gate)
    if path == "fused":
        tiles0, tiles1 = -(-dims.m0 // block_n), -(-dims.m1 // block_n)
        # Block |m| = 1 walks its two stripes one after the other and forms their gates twice.
        products = _blocks(dims) + 2 * tiles0 * gate + 2 * tiles1 * gate
        return _cost(dims, columns=3 * row + c + dims.m1, products=products)
    # The gates pass from the first launch to the second through memory; the gradient of |m| = 1 is read twice.
    return _cost(dims, columns=3 * row + dims.m1 + 2 * dims.gate_width, products=_blocks(dims) + 2 * gate)


def scratch_bytes(path: Path, dims: StackDims) -> int:
    """Return the surfaces that a path allocates beyond the two gradient buffers."""
    width = dims.row + dims.gate_width if path == "relay" else 0
    return _FLOAT * dims.n_focus * dims.n_edge * width


def _blocks(dims: StackDims) -> int:
    return dims.m0**2 + dims.m1**2


def _gates(dims: StackDims) -> int:
    return dims.channels * dims.gate_width


def _cost(dims: StackDims, columns: int, products: int) -> Cost:
    rows = dims.n_focus * dims.n_edge
    weights = dims.n_focus * (_blocks(dims) + 2 * _gates(dims))
    return Cost(bytes=_FLOAT * (rows * columns + weights), flops=2 * rows * products)
