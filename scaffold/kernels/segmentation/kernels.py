"""Triton kernels of the loss sums; import this module only where Triton is installed.

A tile is (voxels, classes), and a thread holds all classes of its voxels, so that the softmax needs no exchange
between threads. To that end a tile is joined from loads of one class each, which the compiler spreads over
threads by voxels; where the classes of a voxel lie side by side, the strided reads of a tile meet in the L1
cache. A gradient is written as a tile, which the compiler first passes through shared memory: strided writes
would not meet before L2.

The classes are padded from CLASSES to WIDTH, a power of two; the columns too many hold minus infinity.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _logits(
    logits, voxels, inside, plane,
    CLASSES: tl.constexpr, LAST: tl.constexpr, PAIRED: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr = 0,
):  # fmt: skip
    """Load WIDTH classes from FIRST on as float32 (voxels, WIDTH); zeros where not ``inside``."""
    if WIDTH > 2:
        half: tl.constexpr = WIDTH // 2
        left = _logits(logits, voxels, inside, plane, CLASSES, LAST, PAIRED, half, FIRST)
        right = _logits(logits, voxels, inside, plane, CLASSES, LAST, PAIRED, half, FIRST + half)
        return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (voxels.shape[0], WIDTH))
    elif PAIRED and FIRST < CLASSES:
        pointers = (logits + _offsets(voxels, FIRST, plane, CLASSES, LAST)).to(tl.pointer_type(tl.int32))
        pair = tl.load(pointers, mask=inside, other=0)
        # A bfloat16 is the upper half of a float32.
        left = (pair << 16).to(tl.float32, bitcast=True)
        return tl.join(left, (pair & -0x10000).to(tl.float32, bitcast=True))
    else:
        left = _class(logits, voxels, inside, plane, CLASSES, LAST, FIRST)
        return tl.join(left, _class(logits, voxels, inside, plane, CLASSES, LAST, FIRST + 1))


@triton.jit
def _class(logits, voxels, inside, plane, CLASSES: tl.constexpr, LAST: tl.constexpr, INDEX: tl.constexpr):
    if INDEX < CLASSES:
        pointers = logits + _offsets(voxels, INDEX, plane, CLASSES, LAST)
        return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    else:
        return tl.full(voxels.shape, float("-inf"), tl.float32)


@triton.jit
def _offsets(voxels, classes, plane, CLASSES: tl.constexpr, LAST: tl.constexpr):
    """Return where the logits of ``voxels`` and ``classes`` lie, from the first voxel's class 0 on.

    ``plane`` is the number of voxels, in 64 bits, since class planes may start beyond 2**31 elements.
    """
    if LAST:
        return voxels * CLASSES + classes
    else:
        return voxels + classes * plane


@triton.jit
def _log_softmax(x):
    """Return log p and p of x (voxels, classes)."""
    # The maximum may skip a NaN; the differences and their sum do not.
    x -= tl.max(x, axis=1)[:, None]
    e = tl.exp(x)
    total = tl.sum(e, axis=1)
    return x - tl.log(total)[:, None], e * (1.0 / total)[:, None]


@triton.jit
def _labels(labels, voxels, inside, CLASSES: tl.constexpr):
    """Return the labels of the ``voxels`` as int32; -1 where a label names no class, or there is no voxel."""
    label = tl.load(labels + voxels, mask=inside, other=0)
    # Compared before it is narrowed, so that no large label becomes a small one.
    return tl.where(inside & (label >= 0) & (label < CLASSES), label.to(tl.int32), -1)


@triton.jit
def sums_kernel(
    logits, labels, weights, partials, extent,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """Write one row (1 + CLASSES, 2) of ``partials``, (samples, programs, 1 + CLASSES, 2).

    The grid is (programs, samples). A program takes every ``programs``-th tile of its sample, and adds lane by
    lane; lanes are added up once, at the end.
    """
    sample, program = tl.program_id(1).to(tl.int64), tl.program_id(0)
    plane = tl.full((), 1, tl.int64) * extent
    logits += sample * plane * CLASSES
    labels += sample * plane
    voxels, classes = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    numerator = tl.zeros((BLOCK,), dtype=tl.float32)
    denominator = tl.zeros((BLOCK,), dtype=tl.float32)
    overlap = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    total = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for turn in range(TURNS):
        start = (turn * tl.num_programs(0) + program).to(tl.int64) * BLOCK
        inside = voxels < plane - start
        first = _offsets(start, 0, plane, CLASSES, LAST)
        x = _logits(logits + first, voxels, inside, plane, CLASSES, LAST, PAIRED, WIDTH)
        label = _labels(labels + start, voxels, inside, CLASSES)
        log_p, p = _log_softmax(x)
        truth = label[:, None] == classes[None, :]
        weight = tl.load(weights + label, mask=label >= 0, other=0.0)
        numerator -= weight * tl.sum(tl.where(truth, log_p, 0.0), axis=1)
        denominator += weight
        overlap += tl.where(truth, p, 0.0)
        total += tl.where(inside[:, None], p, 0.0) + truth.to(tl.float32)
    row = partials + (sample * tl.num_programs(0) + program) * (2 * (1 + CLASSES))
    tl.store(row, tl.sum(numerator))
    tl.store(row + 1, tl.sum(denominator))
    tl.store(row + 2 + 2 * classes, 2 * tl.sum(overlap, axis=0), mask=classes < CLASSES)
    tl.store(row + 3 + 2 * classes, tl.sum(total, axis=0), mask=classes < CLASSES)


@triton.jit
def gradient_kernel(
    logits, labels, weights, cotangent, gradient, extent,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one tile of logits, in their type and layout, from that of the sums.

    The grid is (tiles, samples); ``cotangent`` is (samples, 1 + CLASSES, 2).
    """
    sample, start = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK
    plane = tl.full((), 1, tl.int64) * extent
    first = sample * plane * CLASSES + _offsets(start, 0, plane, CLASSES, LAST)
    voxels, classes = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    inside = voxels < plane - start
    x = _logits(logits + first, voxels, inside, plane, CLASSES, LAST, PAIRED, WIDTH)
    label = _labels(labels + sample * plane + start, voxels, inside, CLASSES)
    _, p = _log_softmax(x)
    truth = label[:, None] == classes[None, :]
    cotangent += sample * (2 * (1 + CLASSES))
    overlap = 2 * tl.load(cotangent + 2 + 2 * classes, mask=classes < CLASSES, other=0.0)
    total = tl.load(cotangent + 3 + 2 * classes, mask=classes < CLASSES, other=0.0)
    weight = tl.load(weights + label, mask=label >= 0, other=0.0) * tl.load(cotangent)
    # The gradient of log p; then that of the logits.
    g = p * (total[None, :] + tl.where(truth, overlap[None, :], 0.0)) - tl.where(truth, weight[:, None], 0.0)
    g -= p * tl.sum(g, axis=1)[:, None]
    pointers = gradient + first + _offsets(voxels[:, None], classes[None, :], plane, CLASSES, LAST)
    tl.store(pointers, g.to(gradient.dtype.element_ty), mask=inside[:, None] & (classes < CLASSES)[None, :])
