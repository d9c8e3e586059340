"""Triton kernels of the stem convolution; import this module only where Triton is installed.

The image x lies as N D planes of H rows of W C values; the output y as as many rows of W CO. The unit of work
is a *pair* of neighbouring voxels along W, because

* the receptive fields of the two overlap: 4 C instead of 6 C values a row, in each of 9 (depth, height) taps;
* their outputs are 2 CO contiguous values, which makes the product wide.

A pair's *patch* is the 9 windows one after another: its element k is value ``k % WINDOW`` of the window of tap
``k // WINDOW``. Windows of an odd number of channels get one value more at either end: all then start at an
even offset, and loads take two values at a time. Those values, and the voxel that only the other one of the
pair sees, have zero weights.

A program owns a *strip*, PAIRS pairs wide and TURNS rows long, of one plane: grid (chunks of a plane's height,
strips, N D). Consecutive rows share two thirds of what they read, which the cache then has. Offsets of planes
are formed in 64 bits, since the output passes 2**31 elements at 128 channels and 256^3; inside a plane and its
neighbours 32 bits do.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _patches(x, plane, h, k, strip, D, H, W, C: tl.constexpr, PAIRS: tl.constexpr):
    """Load elements ``k`` of the patches of one row of a strip, (PAIRS, len(k)), zeros outside the volume."""
    LEAD: tl.constexpr = C % 2
    WINDOW: tl.constexpr = 4 * C + 2 * LEAD
    tap = k // WINDOW
    depth, height = plane % D + tap // 3 - 1, h + tap % 3 - 1
    there = (tap < 9) & (depth >= 0) & (depth < D) & (height >= 0) & (height < H)
    pair = strip * PAIRS + tl.arange(0, PAIRS)
    column = pair[:, None] * (2 * C) + (k % WINDOW - (C + LEAD))[None, :]
    # One comparison for both ends: a negative column is a large unsigned one.
    mask = there[None, :] & (column.to(tl.uint32) < tl.cast(W * C, tl.uint32))
    rows = x + plane.to(tl.int64) * (H * W * C) + (((tap // 3 - 1) * H + height) * (W * C))[None, :]
    return tl.load(rows + column, mask=mask, other=0.0)


@triton.jit
def _toeplitz(weight, k, s_co, s_ci, s_d, s_h, s_w, C: tl.constexpr, CO: tl.constexpr):
    """Load rows ``k`` of the weight as patches meet it, (len(k), 2 CO): the first voxel's columns, the second's."""
    LEAD: tl.constexpr = C % 2
    WINDOW: tl.constexpr = 4 * C + 2 * LEAD
    tap, value = k // WINDOW, k % WINDOW - LEAD
    n = tl.arange(0, 2 * CO)
    voxel, co = n // CO, n % CO
    kw = value[:, None] // C - voxel[None, :]
    mask = ((tap < 9) & (value >= 0) & (value < 4 * C))[:, None] & (kw >= 0) & (kw < 3)
    at = (tap // 3 * s_d + tap % 3 * s_h + value % C * s_ci)[:, None] + (co * s_co)[None, :] + kw * s_w
    return tl.load(weight + at, mask=mask, other=0.0)


@triton.jit
def _outputs(y, plane, h, strip, H, W, CO: tl.constexpr, PAIRS: tl.constexpr):
    """Return pointers to the outputs of one row of a strip, (PAIRS, 2 CO), and which of them exist."""
    n = tl.arange(0, 2 * CO)
    pair = strip * PAIRS + tl.arange(0, PAIRS)
    mask = (h < H) & (2 * pair[:, None] + (n // CO)[None, :] < W)
    return y + (plane.to(tl.int64) * H + h) * (W * CO) + (pair[:, None] * (2 * CO) + n[None, :]), mask


@triton.jit
def forward_kernel(
    x, weight, y, D, H, W, s_co, s_ci, s_d, s_h, s_w,
    C: tl.constexpr, CO: tl.constexpr, PAIRS: tl.constexpr, K_TILE: tl.constexpr, K_TILES: tl.constexpr,
    TURNS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Convolve one strip, row after row; the weight stays on the chip."""
    strip, plane = tl.program_id(1), tl.program_id(2)
    weights = ()
    for part in tl.static_range(K_TILES):
        k = part * K_TILE + tl.arange(0, K_TILE)
        weights += (_toeplitz(weight, k, s_co, s_ci, s_d, s_h, s_w, C, CO).to(DTYPE),)
    for turn in range(TURNS):
        h = tl.program_id(0) * TURNS + turn
        patches = ()
        for part in tl.static_range(K_TILES):
            k = part * K_TILE + tl.arange(0, K_TILE)
            patches += (_patches(x, plane, h, k, strip, D, H, W, C, PAIRS).to(DTYPE),)
        acc = tl.zeros((PAIRS, 2 * CO), dtype=tl.float32)
        for part in tl.static_range(K_TILES):
            acc = tl.dot(patches[part], weights[part], acc, input_precision="ieee")
        outputs, mask = _outputs(y, plane, h, strip, H, W, CO, PAIRS)
        tl.store(outputs, acc.to(DTYPE), mask=mask)


@triton.jit
def weight_gradient_kernel(
    x, dy, partials, D, H, W, strips,
    C: tl.constexpr, CO: tl.constexpr, PAIRS: tl.constexpr, K_TILE: tl.constexpr, K_TILES: tl.constexpr,
    TURNS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Sum dy^T patches over one strip into its (2 CO, K_TILES K_TILE); axis 1 of the grid is (part of k, strip)."""
    strip, part, plane = tl.program_id(1) % strips, tl.program_id(1) // strips, tl.program_id(2)
    k = part * K_TILE + tl.arange(0, K_TILE)
    acc = tl.zeros((2 * CO, K_TILE), dtype=tl.float32)
    for turn in range(TURNS):
        h = tl.program_id(0) * TURNS + turn
        gradients, mask = _outputs(dy, plane, h, strip, H, W, CO, PAIRS)
        gradient = tl.load(gradients, mask=mask, other=0.0)
        patches = _patches(x, plane, h, k, strip, D, H, W, C, PAIRS).to(DTYPE)
        acc = tl.dot(tl.trans(gradient), patches, acc, input_precision="ieee")
    program = (plane.to(tl.int64) * strips + strip) * tl.num_programs(0) + tl.program_id(0)
    n = tl.arange(0, 2 * CO)
    tl.store(partials + program * (2 * CO * K_TILES * K_TILE) + (n[:, None] * (K_TILES * K_TILE) + k[None, :]), acc)


@triton.jit
def weight_gradient_sum_kernel(
    partials, gradient, s_co, s_ci, s_d, s_h, s_w,
    C: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, PARTIALS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the strips' sums, ROWS at a time in their order, and both voxels' share of each weight."""
    LEAD: tl.constexpr = C % 2
    WINDOW: tl.constexpr = 4 * C + 2 * LEAD
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    co, tap, kw, ci = element // (27 * C), element // (3 * C) % 9, element // C % 3, element % C
    first = co * K + tap * WINDOW + LEAD + kw * C + ci
    second = first + CO * K + C
    acc = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, PARTIALS, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < PARTIALS)[:, None] & (element < 27 * C * CO)[None, :]
        rows = partials + row.to(tl.int64)[:, None] * (2 * CO * K)
        acc += tl.load(rows + first[None, :], mask=mask, other=0.0)
        acc += tl.load(rows + second[None, :], mask=mask, other=0.0)
    at = co * s_co + ci * s_ci + tap // 3 * s_d + tap % 3 * s_h + kw * s_w
    tl.store(gradient + at, tl.sum(acc, axis=0), mask=element < 27 * C * CO)
