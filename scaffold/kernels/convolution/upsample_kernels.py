"""Triton kernels of the step up; import this module only where Triton is installed.

One GEMM each way over the *coarse* voxels (of the transposed convolution's input), whose 8 C columns are
(tap, channel): tap ``4 kd + 2 kh + kw`` of coarse voxel (i, j, k) is fine voxel (2 i + kd, 2 j + kh, 2 k + kw).
Neither the upsampled tensor nor its gradient exists: they are the channels from C on of the concatenation,
written and read in place, 2 C elements from voxel to voxel.

Sizes and strides are compile-time constants, so that divisions become shifts and alignment is known; a level
of the network compiles once. ``X_N, X_D, X_H, X_W`` are the element strides of ``x`` (channels have stride 1).
A tile that feeds ``tl.dot`` is loaded and never computed: operands that wait in shared memory cannot be
overwritten while a tensor-core product reads them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _coordinates(voxel, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr):
    """Split flat voxel numbers into (n, i, j, k), in 64 bits if offsets need them: planes may lie far apart."""
    k = voxel % W
    j = voxel // W % H
    i = voxel // (W * H) % D
    n = voxel // (W * H * D)
    if WIDE:
        return n.to(tl.int64), i.to(tl.int64), j.to(tl.int64), k.to(tl.int64)
    else:
        return n, i, j, k


@triton.jit
def _tap_offsets(tap, STRIDE_D: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        tap = tap.to(tl.int64)
    return tap // 4 * STRIDE_D + tap // 2 % 2 * STRIDE_H + tap % 2 * STRIDE_W


@triton.jit
def _dot(a, b, acc, UPCAST: tl.constexpr):
    """Add ``a @ b``; float32 stays float32 (no tf32). UPCAST: the interpreter cannot multiply bfloat16."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _finished(acc):
    """Return ``acc`` after waiting for its product: any use in the loop's turn does, and this one costs nothing.

    Triton's pipeliner leaves a product in flight while the next tiles arrive, and keeps one more buffer of its
    operands for that; but not of an operand that something else reads too, which would be overwritten.
    """
    return acc.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)


@triton.jit
def forward_kernel(
    x, weight, bias, skip, out, n_cells, C: tl.constexpr,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    X_N: tl.constexpr, X_D: tl.constexpr, X_H: tl.constexpr, X_W: tl.constexpr,
    S_N: tl.constexpr, S_D: tl.constexpr, S_H: tl.constexpr, S_W: tl.constexpr,
    COPY_SKIP: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write ``[skip, up(x)]`` for BLOCK_M cells of 2^3 fine voxels and BLOCK_N columns (tap, channel).

    Cells cover the fine extents D, H, W, which may be one more than twice d, h, w: cells past ``x`` give zeros.
    """
    CELLS_D: tl.constexpr = (D + 1) // 2
    CELLS_H: tl.constexpr = (H + 1) // 2
    CELLS_W: tl.constexpr = (W + 1) // 2
    TILES_N: tl.constexpr = 8 * C // BLOCK_N
    # Columns run fastest: programs that read the same rows of x run together, and fill whole voxels.
    cells = tl.program_id(0) // TILES_N * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = columns // C
    channel = columns % C
    n, i, j, k = _coordinates(cells, CELLS_D, CELLS_H, CELLS_W, WIDE)
    exists = cells < n_cells
    EVEN: tl.constexpr = (2 * d == D) and (2 * h == H) and (2 * w == W)
    if EVEN:
        inside = exists
        stored = exists[:, None]
    else:
        inside = exists & (i < d) & (j < h) & (k < w)
        in_depth = 2 * i[:, None] + (tap // 4)[None, :] < D
        in_height = 2 * j[:, None] + (tap // 2 % 2)[None, :] < H
        in_width = 2 * k[:, None] + (tap % 2)[None, :] < W
        stored = exists[:, None] & in_depth & in_height & in_width

    fine = (((n * D + 2 * i) * H + 2 * j) * W + 2 * k) * (2 * C)
    out_offsets = fine[:, None] + (_tap_offsets(tap, H * W * 2 * C, W * 2 * C, 2 * C, WIDE) + channel)[None, :]
    if COPY_SKIP:
        skip_row = n * S_N + 2 * i * S_D + 2 * j * S_H + 2 * k * S_W
        skip_offsets = skip_row[:, None] + (_tap_offsets(tap, S_D, S_H, S_W, WIDE) + channel)[None, :]
        copied = tl.load(skip + skip_offsets, mask=stored, other=0.0)

    x_row = n * X_N + i * X_D + j * X_H + k * X_W
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, 2 * C, BLOCK_K):
        inner = k0 + tl.arange(0, BLOCK_K)
        a = tl.load(x + (x_row[:, None] + inner[None, :]), mask=inside[:, None], other=0.0)
        b = tl.load(weight + (inner[:, None] * (8 * C) + columns[None, :]))
        acc = _dot(a, b, acc, UPCAST)
    acc += tl.load(bias + channel).to(tl.float32)[None, :]
    if not EVEN:
        acc = tl.where(inside[:, None], acc, 0.0)
    tl.store(out + C + out_offsets, acc.to(out.dtype.element_ty), mask=stored)
    if COPY_SKIP:
        tl.store(out + out_offsets, copied, mask=stored)


@triton.jit
def input_gradient_kernel(
    grad, weight, out, n_voxels, C: tl.constexpr, d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    G_N: tl.constexpr, G_D: tl.constexpr, G_H: tl.constexpr, G_W: tl.constexpr,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write one split's share of dx, (voxels, 2 C) each: a sum over its range of the 8 C (tap, channel)."""
    TILES_N: tl.constexpr = 2 * C // BLOCK_N
    SHARE: tl.constexpr = 8 * C // SPLITS
    voxels = tl.program_id(0) // TILES_N * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * SHARE
    exists = voxels < n_voxels
    n, i, j, k = _coordinates(voxels, d, h, w, WIDE)
    row = n * G_N + 2 * i * G_D + 2 * j * G_H + 2 * k * G_W

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, SHARE, BLOCK_K):
        inner = first + k0 + tl.arange(0, BLOCK_K)
        inner_offsets = _tap_offsets(inner // C, G_D, G_H, G_W, WIDE) + inner % C
        a = tl.load(grad + C + (row[:, None] + inner_offsets[None, :]), mask=exists[:, None], other=0.0)
        b = tl.load(weight + (columns[None, :] * (8 * C) + inner[:, None]))
        acc = _dot(a, b, acc, UPCAST)
    rows = voxels.to(tl.int64) if WIDE else voxels
    share = tl.program_id(1).to(tl.int64) * n_voxels * (2 * C)
    offsets = rows[:, None] * (2 * C) + columns[None, :]
    tl.store(out + share + offsets, acc.to(out.dtype.element_ty), mask=exists[:, None])


@triton.jit
def weight_gradient_kernel(
    x, grad, out, bias_out, n_voxels, C: tl.constexpr, d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    X_N: tl.constexpr, X_D: tl.constexpr, X_H: tl.constexpr, X_W: tl.constexpr,
    G_N: tl.constexpr, G_D: tl.constexpr, G_H: tl.constexpr, G_W: tl.constexpr,
    STEPS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write one split's share of dW, (2 C, 8 C) each, and of its column sums over the voxels, (8 C,) each.

    Split s takes blocks s, s + SPLITS, ... of BLOCK_K voxels, counted from the end: all programs advance together,
    through what the input gradient, which ran before, read last and left in the cache.
    """
    TILES_N: tl.constexpr = 8 * C // BLOCK_N
    tile_m = tl.program_id(0) // TILES_N
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    column_offsets = _tap_offsets(columns // C, G_D, G_H, G_W, WIDE) + columns % C
    last = (n_voxels + BLOCK_K - 1) // BLOCK_K - 1

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    sums = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for step in range(0, STEPS):
        voxels = (last - step * SPLITS - split) * BLOCK_K + tl.arange(0, BLOCK_K)
        exists = (voxels >= 0) & (voxels < n_voxels)
        n, i, j, k = _coordinates(voxels, d, h, w, WIDE)
        x_row = n * X_N + i * X_D + j * X_H + k * X_W
        grad_row = n * G_N + 2 * i * G_D + 2 * j * G_H + 2 * k * G_W
        a = tl.load(x + (x_row[:, None] + rows[None, :]), mask=exists[:, None], other=0.0)
        b = tl.load(grad + C + (grad_row[:, None] + column_offsets[None, :]), mask=exists[:, None], other=0.0)
        acc = _finished(_dot(tl.trans(a), b, acc, UPCAST))
        sums += b.to(tl.float32)
    share = split.to(tl.int64) * (16 * C * C)
    tl.store(out + share + rows[:, None] * (8 * C) + columns[None, :], acc.to(out.dtype.element_ty))
    if tile_m == 0:
        tl.store(bias_out + split * (8 * C) + columns, tl.sum(sums, axis=0))


@triton.jit
def sum_shares_kernel(
    shares, out, size, N_SHARES: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum (N_SHARES, size) over the shares: ROWS at a time by a fixed tree, the groups in ascending order."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N_SHARES, ROWS):
        row = first + tl.arange(0, ROWS)
        rows = row.to(tl.int64) if WIDE else row
        mask = (row < N_SHARES)[:, None] & (columns < size)[None, :]
        total += tl.sum(tl.load(shares + (rows[:, None] * size + columns[None, :]), mask=mask, other=0.0), axis=0)
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=columns < size)
