"""Triton kernels of GroupNorm, ReLU and the 1^3 convolution in one; import this module only where Triton is installed.

The normalised tensor y lives in registers only, and so does its gradient, the product of the logits' gradient and
the weight: each kernel makes of a tile of x what it needs of them. What GroupNorm's own kernels say of groups,
statistics and the order of passes holds here (``group_norm/kernels.py``); all groups of a tile are in one program.

Programs (grid: voxel programs, samples) take every PROGRAMS-th tile of BLOCK voxels. A tile has LANES channels,
BLOCK_GROUPS groups padded to PADDED each, and the logits are padded to WIDE_OUT classes; whatever lies in the
padding is loaded as zero. Tile bases are 64-bit.

The order of all additions is fixed by the compile-time sizes. There are no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from scaffold.kernels.group_norm.kernels import (
    channel_lanes,
    gradient_terms,
    group_lanes,
    merge_statistics,
    spread,
    sum_rows,
)


@triton.jit
def _tile(base, first, column, exists, VOXELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return pointers to the columns of BLOCK voxels of a (VOXELS, WIDTH) array, and which there are."""
    voxel = tl.arange(0, BLOCK)
    pointers = base + first.to(tl.int64) * WIDTH + (voxel[:, None] * WIDTH + column[None, :])
    inside = (first + voxel < VOXELS)[:, None]
    if column.shape[0] == WIDTH:
        return pointers, tl.broadcast_to(inside, (BLOCK, WIDTH))
    else:
        return pointers, inside & exists[None, :]


@triton.jit
def _affine(mean, rstd, norm_weight, norm_bias, channel, exists, PADDED: tl.constexpr):
    """Return each channel's mean, scale and shift, of which the pre-activation is (x - mean) * scale + shift."""
    scale = spread(rstd, PADDED) * tl.load(norm_weight + channel, mask=exists, other=0.0).to(tl.float32)
    shift = tl.load(norm_bias + channel, mask=exists, other=0.0).to(tl.float32)
    return spread(mean, PADDED)[None, :], scale[None, :], shift[None, :]


@triton.jit
def _filters(weight, output, output_exists, channel, channel_exists, C: tl.constexpr, DTYPE: tl.constexpr):
    """Load the weight (CLASSES, C), rounded to DTYPE."""
    pointers = weight + output[:, None] * C + channel[None, :]
    return tl.load(pointers, mask=output_exists[:, None] & channel_exists[None, :], other=0.0).to(DTYPE)


@triton.jit(do_not_specialize=["samples"])
def logits_kernel(
    x, norm_weight, norm_bias, moments, statistics, weight, bias, logits, samples, eps,
    C: tl.constexpr, GROUPS: tl.constexpr, CLASSES: tl.constexpr, VOXELS: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    PADDED: tl.constexpr, WIDE_OUT: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, TURNS: tl.constexpr,
    STAGES: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge a sample's moments, keep (count, mean, 1 / deviation) as statistics, and write the logits."""
    program, sample = tl.program_id(0), tl.program_id(1)
    group, group_exists = group_lanes(0, GROUPS, BLOCK_GROUPS)
    channel, channel_exists = channel_lanes(0, C, GROUPS, BLOCK_GROUPS, PADDED)
    output = tl.arange(0, WIDE_OUT)
    output_exists = output < CLASSES
    mean, rstd = merge_statistics(
        moments, statistics, program, sample, samples, eps, group, group_exists, GROUPS, PARTS, CHUNK
    )  # fmt: skip
    mean, scale, shift = _affine(mean, rstd, norm_weight, norm_bias, channel, channel_exists, PADDED)
    w = tl.trans(_filters(weight, output, output_exists, channel, channel_exists, C, x.dtype.element_ty))
    b = tl.load(bias + output, mask=output_exists, other=0.0).to(x.dtype.element_ty).to(tl.float32)

    x += sample.to(tl.int64) * (VOXELS * C)
    logits += sample.to(tl.int64) * (VOXELS * CLASSES)
    for turn in tl.range(TURNS, num_stages=STAGES):
        first = (program + turn * PROGRAMS) * BLOCK
        pointers, mask = _tile(x, first, channel, channel_exists, VOXELS, C, BLOCK)
        d = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) - mean
        y = tl.fma(d, scale, shift)
        y = tl.where(y <= 0, 0.0, y).to(x.dtype.element_ty)
        out = tl.dot(y, w, input_precision="ieee") + b[None, :]
        pointers, mask = _tile(logits, first, output, output_exists, VOXELS, CLASSES, BLOCK)
        tl.store(pointers, out.to(logits.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples"])
def gradient_sums_kernel(
    x, norm_weight, norm_bias, statistics, weight, dlogits, group_sums, parameter_sums, samples,
    C: tl.constexpr, GROUPS: tl.constexpr, CLASSES: tl.constexpr, VOXELS: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    PADDED: tl.constexpr, WIDE_OUT: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Sums over each program's voxels.

    With g the gradient of the pre-activations: g * norm_weight and g * norm_weight * xhat of each group,
    (PROGRAMS, samples, GROUPS, 2); and a row of the parameters' gradients, (PROGRAMS, samples, 2 C + CLASSES (C + 1)):
    of norm_weight and norm_bias, of weight (CLASSES, C) and bias.

    As g is 0 where the ReLU stopped, else the product of dlogits and weight, the weight can wait until sums over
    voxels are known: those of dlogits times the ReLU's gate (0 or 1) and times the gated x - mean. They are products
    of matrices, like the gradient of the weight, the sums of dlogits times y.
    """
    program, sample = tl.program_id(0), tl.program_id(1)
    group, group_exists = group_lanes(0, GROUPS, BLOCK_GROUPS)
    channel, channel_exists = channel_lanes(0, C, GROUPS, BLOCK_GROUPS, PADDED)
    output = tl.arange(0, WIDE_OUT)
    output_exists = output < CLASSES
    found = statistics + (sample * GROUPS + group) * 3
    group_rstd = tl.load(found + 2, mask=group_exists, other=0.0)
    group_mean = tl.load(found + 1, mask=group_exists, other=0.0)
    mean, scale, shift = _affine(group_mean, group_rstd, norm_weight, norm_bias, channel, channel_exists, PADDED)
    w = _filters(weight, output, output_exists, channel, channel_exists, C, x.dtype.element_ty).to(tl.float32)

    x += sample.to(tl.int64) * (VOXELS * C)
    dlogits += sample.to(tl.int64) * (VOXELS * CLASSES)
    of_gate = tl.zeros((WIDE_OUT, BLOCK_GROUPS * PADDED), tl.float32)
    of_d = tl.zeros((WIDE_OUT, BLOCK_GROUPS * PADDED), tl.float32)
    of_y = tl.zeros((WIDE_OUT, BLOCK_GROUPS * PADDED), tl.float32)
    of_one = tl.zeros((BLOCK, WIDE_OUT), tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        # From the last tile to the first: the next kernel begins where this one ends, in the cache.
        first = (program + (TURNS - 1 - turn) * PROGRAMS) * BLOCK
        pointers, mask = _tile(dlogits, first, output, output_exists, VOXELS, CLASSES, BLOCK)
        incoming = tl.load(pointers, mask=mask, other=0.0)
        pointers, mask = _tile(x, first, channel, channel_exists, VOXELS, C, BLOCK)
        d = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) - mean
        y = tl.fma(d, scale, shift)
        stopped = y <= 0
        columns = tl.trans(incoming)
        gate = tl.where(stopped, 0.0, 1.0).to(incoming.dtype)
        of_gate = tl.dot(columns, gate, of_gate, input_precision="ieee")
        of_d = tl.dot(columns, tl.where(stopped, 0.0, d).to(incoming.dtype), of_d, input_precision="ieee")
        of_y = tl.dot(columns, tl.where(stopped, 0.0, y).to(incoming.dtype), of_y, input_precision="ieee")
        of_one += incoming.to(tl.float32)

    of_bias = tl.sum(w * of_gate, 0)
    of_weight = tl.sum(w * of_d, 0) * spread(group_rstd, PADDED)
    part = program * samples + sample
    row = parameter_sums + part.to(tl.int64) * (2 * C + CLASSES * (C + 1))
    tl.store(row + channel, of_weight, mask=channel_exists)
    tl.store(row + C + channel, of_bias, mask=channel_exists)
    row += 2 * C
    mask = output_exists[:, None] & channel_exists[None, :]
    tl.store(row + output[:, None] * C + channel[None, :], of_y, mask=mask)
    tl.store(row + CLASSES * C + output, tl.sum(of_one, 0), mask=output_exists)
    w = tl.load(norm_weight + channel, mask=channel_exists, other=0.0).to(tl.float32)
    shape: tl.constexpr = (BLOCK_GROUPS, PADDED)
    group_sums += (part * GROUPS + group) * 2
    tl.store(group_sums, tl.sum(tl.reshape(w * of_bias, shape), 1), mask=group_exists)
    tl.store(group_sums + 1, tl.sum(tl.reshape(w * of_weight, shape), 1), mask=group_exists)


@triton.jit(do_not_specialize=["samples"])
def input_gradient_kernel(
    x, norm_weight, norm_bias, statistics, weight, dlogits, group_sums, parameter_sums, dx, dparameters, samples,
    C: tl.constexpr, GROUPS: tl.constexpr, CLASSES: tl.constexpr, VOXELS: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    PADDED: tl.constexpr, WIDE_OUT: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, TURNS: tl.constexpr,
    STAGES: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x from the sums (PARTS, samples, GROUPS, 2) over all voxels of a sample.

    Programs beyond PROGRAMS sum the ROWS of parameters' gradients instead, COLUMNS each.
    """
    program, sample = tl.program_id(0), tl.program_id(1)
    if program >= PROGRAMS:
        if sample == 0:
            width: tl.constexpr = 2 * C + CLASSES * (C + 1)
            column = (program - PROGRAMS) * COLUMNS + tl.arange(0, COLUMNS)
            sums = sum_rows(parameter_sums, column, column < width, width, ROWS)
            tl.store(dparameters + column, sums, mask=column < width)
    else:
        group, group_exists = group_lanes(0, GROUPS, BLOCK_GROUPS)
        channel, channel_exists = channel_lanes(0, C, GROUPS, BLOCK_GROUPS, PADDED)
        output = tl.arange(0, WIDE_OUT)
        output_exists = output < CLASSES
        mean, rstd, constant, slope = gradient_terms(
            group_sums, statistics, sample, samples, group, group_exists, GROUPS, PARTS, CHUNK
        )  # fmt: skip
        mean, scale, shift = _affine(mean, rstd, norm_weight, norm_bias, channel, channel_exists, PADDED)
        constant, slope = spread(constant, PADDED)[None, :], spread(slope, PADDED)[None, :]
        w = _filters(weight, output, output_exists, channel, channel_exists, C, x.dtype.element_ty)

        x += sample.to(tl.int64) * (VOXELS * C)
        dx += sample.to(tl.int64) * (VOXELS * C)
        dlogits += sample.to(tl.int64) * (VOXELS * CLASSES)
        for turn in tl.range(TURNS, num_stages=STAGES):
            first = (program + turn * PROGRAMS) * BLOCK
            pointers, mask = _tile(dlogits, first, output, output_exists, VOXELS, CLASSES, BLOCK)
            incoming = tl.load(pointers, mask=mask, other=0.0)
            pointers, mask = _tile(x, first, channel, channel_exists, VOXELS, C, BLOCK)
            d = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) - mean
            g = tl.where(tl.fma(d, scale, shift) <= 0, 0.0, tl.dot(incoming, w, input_precision="ieee"))
            pointers, mask = _tile(dx, first, channel, channel_exists, VOXELS, C, BLOCK)
            tl.store(pointers, (scale * g - (slope * d + constant)).to(dx.dtype.element_ty), mask=mask)
