"""Triton kernels of the pointwise convolution; import this module only where Triton is installed.

In channels-last order it is a product of matrices, x (ROWS, C_IN) times the transposed weight (C_OUT, C_IN),
with a row for each voxel. Both kernels read and write each activation once, and are limited by that. A program
takes every ``programs``-th tile of BLOCK rows. The channels are padded to powers of two, WIDE_IN and WIDE_OUT;
the products have a row of at least 16 to contract over.

Operands of products are tiles as they were loaded, never computed ones: those would lie in registers, and a
product that still runs when a loop starts its next turn would see them change.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(base, inside, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Load a tile (rows, WIDTH), zeros where there are no channels or not ``inside``."""
    rows, channels = tl.arange(0, inside.shape[0])[:, None], tl.arange(0, WIDTH)[None, :]
    pointers = base + rows * CHANNELS + channels
    if WIDTH == CHANNELS:
        return tl.load(pointers, mask=inside[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=inside[:, None] & (channels < CHANNELS), other=0.0)


@triton.jit
def _store_rows(base, tile, inside, CHANNELS: tl.constexpr):
    rows, channels = tl.arange(0, tile.shape[0])[:, None], tl.arange(0, tile.shape[1])[None, :]
    mask = inside[:, None] & (channels < CHANNELS)
    tl.store(base + rows * CHANNELS + channels, tile.to(base.dtype.element_ty), mask=mask)


@triton.jit
def forward_kernel(
    x, weight, bias, out, rows,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, WIDE_IN: tl.constexpr, WIDE_OUT: tl.constexpr,
    BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Write ``x weight^T + bias``, the parameters rounded to the type of ``x``, the sums float32."""
    inputs, outputs = tl.arange(0, WIDE_IN)[:, None], tl.arange(0, WIDE_OUT)
    mask = (inputs < C_IN) & (outputs < C_OUT)[None, :]
    w = tl.load(weight + outputs[None, :] * C_IN + inputs, mask=mask, other=0.0).to(x.dtype.element_ty)
    b = tl.load(bias + outputs, mask=outputs < C_OUT, other=0.0).to(x.dtype.element_ty).to(tl.float32)
    for turn in range(TURNS):
        start = (turn * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * BLOCK
        inside = start + tl.arange(0, BLOCK) < rows
        tile = _rows(x + start * C_IN, inside, C_IN, WIDE_IN)
        _store_rows(out + start * C_OUT, tl.dot(tile, w, input_precision="ieee") + b[None, :], inside, C_OUT)


@triton.jit
def backward_kernel(
    x, gradient, weight, dx, partials, rows,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, WIDE_IN: tl.constexpr, WIDE_OUT: tl.constexpr,
    BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Write ``dx = gradient weight``, and a row of ``partials``: this program's share of (dweight, dbias)."""
    inputs, outputs = tl.arange(0, WIDE_IN), tl.arange(0, WIDE_OUT)
    mask = (outputs < C_OUT)[:, None] & (inputs < C_IN)[None, :]
    w = tl.load(weight + outputs[:, None] * C_IN + inputs[None, :], mask=mask, other=0.0).to(x.dtype.element_ty)
    dweight = tl.zeros((WIDE_IN, WIDE_OUT), dtype=tl.float32)
    dbias = tl.zeros((BLOCK, WIDE_OUT), dtype=tl.float32)
    for turn in range(TURNS):
        start = (turn * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * BLOCK
        inside = start + tl.arange(0, BLOCK) < rows
        dy = _rows(gradient + start * C_OUT, inside, C_OUT, WIDE_OUT)
        _store_rows(dx + start * C_IN, tl.dot(dy, w, input_precision="ieee"), inside, C_IN)
        tile = _rows(x + start * C_IN, inside, C_IN, WIDE_IN)
        dweight = tl.dot(tl.trans(tile), dy, dweight, input_precision="ieee")
        dbias += dy.to(tl.float32)
    partials += tl.program_id(0).to(tl.int64) * (C_OUT * (C_IN + 1))
    tl.store(partials + outputs[None, :] * C_IN + inputs[:, None], dweight, mask=tl.trans(mask))
    tl.store(partials + C_OUT * C_IN + outputs, tl.sum(dbias, axis=0), mask=outputs < C_OUT)
