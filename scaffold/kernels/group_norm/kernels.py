"""Triton kernels of GroupNorm + ReLU on channels-last tensors; import this module only where Triton is installed.

A sample is a dense (voxels, C) array, so a group is a run of C / GROUPS channels of each voxel. Programs
(grid: voxel programs, blocks of whole groups, samples) walk over tiles of ROWS, UNROLL and channels, whose
ROWS and channels fill the threads of a program once with 16-byte accesses: a thread owns a few channels for
as long as it lives, sums over UNROLL stay within it, and threads meet once, after the last tile. Triton gives
threads to the channels, then to the first of the other axes, from version 3.7 on to the second; so UNROLL is
whichever comes last. (``offline.py`` shows when that changes again, by registers that spill.)

Tiles are UNROLL * ROWS consecutive voxels or, with POOL, ROWS pooling windows of UNROLL = 8 voxels. The
passes that only reduce walk from the last tile to the first and the passes that write from the first to
the last, so that each finds in the L2 cache what the kernel before it touched last.

Groups are padded to PADDED channels and blocks to BLOCK_GROUPS groups, both powers of two; MASKED says
that some lanes of some tile lie in the padding or past the end. Tile bases are 64-bit, since tensors of
production size have 2**31 elements; offsets inside a tile fit into 32 bits.

The order of all additions is fixed by the compile-time sizes. There are no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ROWS_AXIS = tl.constexpr(0 if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) else 1)
_UNROLL_AXIS = tl.constexpr(1 - _ROWS_AXIS.value)


@triton.jit
def _pool_index(window, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Depth, height and width of a window's first voxel; windows at odd far sides are cut off."""
    high: tl.constexpr = (HEIGHT + 1) // 2
    wide: tl.constexpr = (WIDTH + 1) // 2
    return window // (high * wide) * 2, window // wide % high * 2, window % wide * 2


@triton.jit
def _tile(
    tile, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, UNROLL: tl.constexpr, ROWS: tl.constexpr,
    POOL: tl.constexpr,
):  # fmt: skip
    """Return a tile's first voxel, its voxels' distances from that, and which exist; both of ROWS and UNROLL."""
    u = tl.expand_dims(tl.arange(0, UNROLL), _ROWS_AXIS)
    row = tl.expand_dims(tl.arange(0, ROWS), _UNROLL_AXIS)
    if POOL:
        d0, h0, w0 = _pool_index(tile * ROWS, HEIGHT, WIDTH)
        first = (d0 * HEIGHT + h0) * WIDTH + w0
        d, h, w = _pool_index(tile * ROWS + row, HEIGHT, WIDTH)
        d, h, w = d + u // 4, h + u // 2 % 2, w + u % 2
        distance = (d * HEIGHT + h) * WIDTH + w - first
        exists = (tile >= 0) & (d < DEPTH) & (h < HEIGHT) & (w < WIDTH)
    else:
        first = tile * (UNROLL * ROWS)
        distance = u * ROWS + row
        exists = (tile >= 0) & (first + distance < DEPTH * HEIGHT * WIDTH)
    return first, distance, exists


@triton.jit
def _pooled_tile(tile, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Return like ``_tile`` the first voxel, distances and existence of a tile's pooled voxels, (ROWS,)."""
    row = tl.arange(0, ROWS)
    if DEPTH % 2 == 0 and HEIGHT % 2 == 0 and WIDTH % 2 == 0:
        first = tile * ROWS
        return first, row, (tile >= 0) & (first + row < DEPTH * HEIGHT * WIDTH // 8)
    d0, h0, w0 = _pool_index(tile * ROWS, HEIGHT, WIDTH)
    first = (d0 // 2 * (HEIGHT // 2) + h0 // 2) * (WIDTH // 2) + w0 // 2
    d, h, w = _pool_index(tile * ROWS + row, HEIGHT, WIDTH)
    exists = (tile >= 0) & (d + 1 < DEPTH) & (h + 1 < HEIGHT) & (w + 1 < WIDTH)
    return first, (d // 2 * (HEIGHT // 2) + h // 2) * (WIDTH // 2) + w // 2 - first, exists


@triton.jit
def group_lanes(block, GROUPS: tl.constexpr, BLOCK_GROUPS: tl.constexpr):
    """Return the groups of a block and which exist, (BLOCK_GROUPS,)."""
    group = block * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    return group, group < GROUPS


@triton.jit
def channel_lanes(block, C: tl.constexpr, GROUPS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, PADDED: tl.constexpr):
    """Return the channels of a block and which exist, (BLOCK_GROUPS * PADDED,)."""
    lane = tl.arange(0, BLOCK_GROUPS * PADDED)
    width: tl.constexpr = C // GROUPS
    if width == PADDED:
        channel = block * (BLOCK_GROUPS * PADDED) + lane
        return channel, channel < C
    group = block * BLOCK_GROUPS + lane // PADDED
    within = lane % PADDED
    return group * width + within, (group < GROUPS) & (within < width)


@triton.jit
def spread(values, PADDED: tl.constexpr):
    """Repeat a value of each group for its channels."""
    size: tl.constexpr = values.shape[0]
    return tl.reshape(tl.broadcast_to(values[:, None], (size, PADDED)), (size * PADDED,))


@triton.jit
def _load(pointers, mask, MASKED: tl.constexpr):
    """Load as float32, zeros where masked."""
    if MASKED:
        return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    return tl.load(pointers).to(tl.float32)


@triton.jit
def _store(pointers, values, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)
    else:
        tl.store(pointers, values.to(pointers.dtype.element_ty))


@triton.jit
def _join(count, mean, m2, n, m, q):
    """Chan, Golub and LeVeque's rule for two parts; a part of zero elements changes nothing."""
    total = count + n
    share = n / tl.maximum(total, 1.0)
    delta = m - mean
    return total, mean + delta * share, m2 + q + delta * delta * (count * share)


@triton.jit
def _merge(count, mean, m2, axis: tl.constexpr):
    """The same rule for all parts along an axis.

    The mean is rounded, which the correction takes back: rounding is all that is left of the deviations
    where the mean is 10**6 of them.
    """
    total = tl.sum(count, axis)
    scale = 1.0 / tl.maximum(total, 1.0)
    rough = tl.sum(count * mean, axis) * scale
    deviation = mean - tl.expand_dims(rough, axis)
    correction = tl.sum(count * deviation, axis) * scale
    deviation -= tl.expand_dims(correction, axis)
    return total, rough + correction, tl.sum(m2 + count * deviation * deviation, axis)


@triton.jit(do_not_specialize=["samples"])
def statistics_kernel(
    x, moments, samples,
    C: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, PADDED: tl.constexpr,
    PROGRAMS: tl.constexpr, TILES: tl.constexpr, TOTAL: tl.constexpr, POOL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Moments (count, mean, sum of squared deviations) of each program's voxels: (PROGRAMS, samples, GROUPS, 3).

    Deviations are from a nearby value, so that those of data with a large mean keep their digits: in masked
    tiles from one of the program's own elements of the group, with a mean for each tile; in whole ones from
    the mean of a thread's first tile. Were that far from the mean of all its tiles, the first tile would
    have a share of 1 / TILES in the sum of squares by itself; so the subtraction at the end magnifies
    rounding TILES times at most.
    """
    program, block, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group, group_exists = group_lanes(block, GROUPS, BLOCK_GROUPS)
    channel, channel_exists = channel_lanes(block, C, GROUPS, BLOCK_GROUPS, PADDED)
    x += sample.to(tl.int64) * (DEPTH * HEIGHT * WIDTH * C)
    start, distance, _exists = _tile(TOTAL - 1 - program, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL)
    pivot = _load(x + start.to(tl.int64) * C + group * (C // GROUPS), group_exists, True)
    origin = spread(pivot, PADDED)[None, None, :]

    if MASKED:
        mean = tl.zeros((ROWS, BLOCK_GROUPS * PADDED), tl.float32)
        m2 = tl.zeros((ROWS, BLOCK_GROUPS * PADDED), tl.float32)
        count = tl.zeros((ROWS, BLOCK_GROUPS * PADDED), tl.float32)
        for step in range(TILES):
            tile = TOTAL - 1 - (program + step * PROGRAMS)
            first, distance, exists = _tile(tile, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL)
            pointers = x + first.to(tl.int64) * C + ((distance * C)[:, :, None] + channel[None, None, :])
            mask = exists[:, :, None] & channel_exists[None, None, :]
            n = tl.sum(mask.to(tl.float32), _UNROLL_AXIS)
            d = tl.where(mask, _load(pointers, mask, True) - origin, 0.0)
            m = tl.sum(d, _UNROLL_AXIS) / tl.maximum(n, 1.0)
            e = tl.where(mask, d - tl.expand_dims(m, _UNROLL_AXIS), 0.0)
            count, mean, m2 = _join(count, mean, m2, n, m, tl.sum(e * e, _UNROLL_AXIS))
    else:
        offsets = (distance * C)[:, :, None] + channel[None, None, :]
        value = _load(x + start.to(tl.int64) * C + offsets, None, False)
        near = tl.sum(value - origin, _UNROLL_AXIS) * (1.0 / UNROLL)
        shift = tl.expand_dims(near, _UNROLL_AXIS) + origin
        d = value - shift
        sum_d = tl.sum(d, _UNROLL_AXIS)
        sum_dd = tl.sum(d * d, _UNROLL_AXIS)
        for step in range(1, TILES):
            first = (TOTAL - 1 - (program + step * PROGRAMS)) * (UNROLL * ROWS)
            d = _load(x + first.to(tl.int64) * C + offsets, None, False) - shift
            sum_d += tl.sum(d, _UNROLL_AXIS)
            sum_dd += tl.sum(d * d, _UNROLL_AXIS)
        count = tl.full((ROWS, BLOCK_GROUPS * PADDED), TILES * UNROLL, tl.float32)
        share = sum_d * (1.0 / (TILES * UNROLL))
        # Not ``near``: the sum with the origin was rounded.
        mean = tl.sum(shift - origin, _UNROLL_AXIS) + share
        m2 = sum_dd - sum_d * share
        m2 = tl.where(m2 < 0.0, 0.0, m2)
    count, mean, m2 = _merge(count, mean, m2, 0)
    shape: tl.constexpr = (BLOCK_GROUPS, PADDED)
    count, mean, m2 = _merge(tl.reshape(count, shape), tl.reshape(mean, shape), tl.reshape(m2, shape), 1)
    moments += ((program * samples + sample) * GROUPS + group) * 3
    tl.store(moments, count, mask=group_exists)
    tl.store(moments + 1, pivot + mean, mask=group_exists)
    tl.store(moments + 2, m2, mask=group_exists)


@triton.jit
def _sample_moments(
    moments, sample, samples, group, exists, GROUPS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Merge (PARTS, samples, GROUPS, 3) for some groups of one sample."""
    part = tl.arange(0, CHUNK)[:, None]
    count = tl.zeros((CHUNK, group.shape[0]), tl.float32)
    mean = tl.zeros((CHUNK, group.shape[0]), tl.float32)
    m2 = tl.zeros((CHUNK, group.shape[0]), tl.float32)
    for start in range(0, PARTS, CHUNK):
        mask = (start + part < PARTS) & exists[None, :]
        pointers = moments + (((start + part) * samples + sample) * GROUPS + group[None, :]) * 3
        n, m, q = (
            tl.load(pointers, mask=mask, other=0.0),
            tl.load(pointers + 1, mask=mask, other=0.0),
            tl.load(pointers + 2, mask=mask, other=0.0),
        )
        count, mean, m2 = _join(count, mean, m2, n, m, q)
    return _merge(count, mean, m2, 0)


@triton.jit
def merge_statistics(
    moments, statistics, program, sample, samples, eps, group, exists, GROUPS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Return mean and 1 / deviation of groups of a sample; the first program keeps (count, mean, 1 / deviation)."""
    count, mean, m2 = _sample_moments(moments, sample, samples, group, exists, GROUPS, PARTS, CHUNK)
    rstd = 1.0 / tl.sqrt_rn(m2 / tl.maximum(count, 1.0) + eps)
    statistics += (sample * GROUPS + group) * 3
    writes = exists & (program == 0)
    tl.store(statistics, count, mask=writes)
    tl.store(statistics + 1, mean, mask=writes)
    tl.store(statistics + 2, rstd, mask=writes)
    return mean, rstd


@triton.jit(do_not_specialize=["samples"])
def forward_coefficients_kernel(
    moments, weight, bias, statistics, coefficients, samples, eps,
    C: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge moments, keep the statistics, and write what ``normalise_kernel`` applies: (samples, 3, C).

    A program for each group of a sample; in what it writes, mean, scale and shift of each channel.
    """
    group, sample = tl.program_id(0) + tl.arange(0, 1), tl.program_id(2)
    mean, rstd = merge_statistics(
        moments, statistics, 0, sample, samples, eps, group, group < GROUPS, GROUPS, PARTS, CHUNK
    )  # fmt: skip
    within = tl.arange(0, PADDED)
    channel, exists = group * (C // GROUPS) + within, within < C // GROUPS
    coefficients += sample * (3 * C) + channel
    tl.store(coefficients, tl.broadcast_to(mean, (PADDED,)), mask=exists)
    tl.store(coefficients + C, rstd * _load(weight + channel, exists, True), mask=exists)
    tl.store(coefficients + 2 * C, _load(bias + channel, exists, True), mask=exists)


@triton.jit
def _places(UNROLL: tl.constexpr):
    """Return the places in a window, to be compared with a tile's."""
    return tl.expand_dims(tl.expand_dims(tl.arange(0, UNROLL), _ROWS_AXIS), 2)


@triton.jit
def _first_maximum(a, i, b, j):
    """The larger of two values and its place; the first of equals, and the last NaN, as PyTorch's pooling."""
    later = ((b == a) & (j < i)) | (b > a)
    a_nan, b_nan = a != a, b != b
    take = (b_nan & ((a_nan == 0) | (j > i))) | ((a_nan == 0) & later)
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit(do_not_specialize=["samples"])
def normalise_kernel(
    x, weight, bias, moments, statistics, coefficients, y, pooled, argmax, samples, eps,
    C: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, PADDED: tl.constexpr,
    PROGRAMS: tl.constexpr, TILES: tl.constexpr, TOTAL: tl.constexpr, POOL: tl.constexpr, MASKED: tl.constexpr,
    PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write y.

    With POOL also the maxima of the windows, and which of a window's 8 voxels each is. With PARTS, each
    program merges the moments of its sample first, and one keeps (count, mean, 1 / deviation) as statistics.
    """
    program, block, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channel, channel_exists = channel_lanes(block, C, GROUPS, BLOCK_GROUPS, PADDED)
    if PARTS == 0:
        row = coefficients + sample * (3 * C) + channel
        mean = _load(row, channel_exists, MASKED)
        scale = _load(row + C, channel_exists, MASKED)
        shift = _load(row + 2 * C, channel_exists, MASKED)
    else:
        group, group_exists = group_lanes(block, GROUPS, BLOCK_GROUPS)
        group_mean, rstd = merge_statistics(
            moments, statistics, program, sample, samples, eps, group, group_exists, GROUPS, PARTS, CHUNK
        )  # fmt: skip
        mean = spread(group_mean, PADDED)
        scale = spread(rstd, PADDED) * _load(weight + channel, channel_exists, True)
        shift = _load(bias + channel, channel_exists, True)
    mean, scale, shift = mean[None, None, :], scale[None, None, :], shift[None, None, :]

    offset = sample.to(tl.int64) * (DEPTH * HEIGHT * WIDTH * C)
    x += offset
    y += offset
    if POOL:
        pooled_offset = sample.to(tl.int64) * ((DEPTH // 2) * (HEIGHT // 2) * (WIDTH // 2) * C)
        pooled += pooled_offset
        argmax += pooled_offset
    for step in range(TILES):
        tile = program + step * PROGRAMS
        first, distance, exists = _tile(tile, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL)
        offsets = (distance * C)[:, :, None] + channel[None, None, :]
        mask = exists[:, :, None] & channel_exists[None, None, :]
        base = first.to(tl.int64) * C
        d = _load(x + base + offsets, mask, MASKED) - mean
        out = tl.fma(d, scale, shift)
        out = tl.where(out <= 0, 0.0, out).to(y.dtype.element_ty)
        _store(y + base + offsets, out, mask, MASKED)
        if POOL:
            place = tl.broadcast_to(_places(UNROLL), d.shape)
            largest, place = tl.reduce((out.to(tl.float32), place), _UNROLL_AXIS, _first_maximum)
            first, distance, exists = _pooled_tile(tile, DEPTH, HEIGHT, WIDTH, ROWS)
            offsets = first.to(tl.int64) * C + ((distance * C)[:, None] + channel[None, :])
            mask = exists[:, None] & channel_exists[None, :]
            _store(pooled + offsets, largest, mask, MASKED)
            _store(argmax + offsets, place, mask, MASKED)


@triton.jit
def _gated_gradient(
    d, scale, shift, dy, dpooled, argmax, first, distance, mask, tile, channel, channel_exists, dy_stride,
    C: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, UNROLL: tl.constexpr,
    ROWS: tl.constexpr, POOL: tl.constexpr, MASKED: tl.constexpr, HAS_DY: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile's pre-activations: that of y and of the maxima, where the ReLU lets it through."""
    if HAS_DY:
        offsets = (distance * dy_stride)[:, :, None] + channel[None, None, :]
        g = _load(dy + first.to(tl.int64) * dy_stride + offsets, mask, MASKED)
    else:
        g = tl.zeros_like(d)
    if POOL:
        first, distance, exists = _pooled_tile(tile, DEPTH, HEIGHT, WIDTH, ROWS)
        offsets = first.to(tl.int64) * C + ((distance * C)[:, None] + channel[None, :])
        pooled_mask = exists[:, None] & channel_exists[None, :]
        largest = _load(dpooled + offsets, pooled_mask, MASKED)
        place = tl.load(argmax + offsets, mask=pooled_mask, other=0) if MASKED else tl.load(argmax + offsets)
        here = tl.expand_dims(place.to(tl.int32), _UNROLL_AXIS) == _places(UNROLL)
        g += tl.where(here, tl.expand_dims(largest, _UNROLL_AXIS), 0.0)
    # The forward's expression, so that both agree on which side of zero a value lies.
    return tl.where(tl.fma(d, scale, shift) <= 0, 0.0, g)


@triton.jit(do_not_specialize=["samples"])
def gradient_sums_kernel(
    x, weight, bias, statistics, dy, dpooled, argmax, group_sums, channel_sums, samples, dy_stride, dy_sample_stride,
    C: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, PADDED: tl.constexpr,
    PROGRAMS: tl.constexpr, TILES: tl.constexpr, TOTAL: tl.constexpr, POOL: tl.constexpr, MASKED: tl.constexpr,
    HAS_DY: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """Sums over each program's voxels.

    With g the gradient of the pre-activations: g * weight and g * weight * xhat of each group,
    (PROGRAMS, samples, GROUPS, 2); g * xhat and g of each channel, (PROGRAMS, samples, 2, C). PLANES
    samples share their statistics.
    """
    program, block, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group, group_exists = group_lanes(block, GROUPS, BLOCK_GROUPS)
    channel, channel_exists = channel_lanes(block, C, GROUPS, BLOCK_GROUPS, PADDED)
    statistics += (sample // PLANES * GROUPS + group) * 3
    rstd = spread(_load(statistics + 2, group_exists, True), PADDED)
    mean = spread(_load(statistics + 1, group_exists, True), PADDED)[None, None, :]
    w = _load(weight + channel, channel_exists, True)
    scale = (rstd * w)[None, None, :]
    shift = _load(bias + channel, channel_exists, True)[None, None, :]

    x += sample.to(tl.int64) * (DEPTH * HEIGHT * WIDTH * C)
    if HAS_DY:
        dy += (sample // PLANES).to(tl.int64) * dy_sample_stride
        dy += (sample % PLANES).to(tl.int64) * (DEPTH * HEIGHT * WIDTH) * dy_stride
    if POOL:
        pooled_offset = sample.to(tl.int64) * ((DEPTH // 2) * (HEIGHT // 2) * (WIDTH // 2) * C)
        dpooled += pooled_offset
        argmax += pooled_offset
    sum_g = tl.zeros((ROWS, BLOCK_GROUPS * PADDED), tl.float32)
    sum_gd = tl.zeros((ROWS, BLOCK_GROUPS * PADDED), tl.float32)
    for step in range(TILES):
        tile = TOTAL - 1 - (program + step * PROGRAMS)
        first, distance, exists = _tile(tile, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL)
        mask = exists[:, :, None] & channel_exists[None, None, :]
        offsets = (distance * C)[:, :, None] + channel[None, None, :]
        d = _load(x + first.to(tl.int64) * C + offsets, mask, MASKED) - mean
        g = _gated_gradient(
            d, scale, shift, dy, dpooled, argmax, first, distance, mask, tile, channel, channel_exists, dy_stride,
            C, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL, MASKED, HAS_DY,
        )  # fmt: skip
        sum_g += tl.sum(g, _UNROLL_AXIS)
        sum_gd += tl.sum(g * d, _UNROLL_AXIS)
    dbias = tl.sum(sum_g, 0)
    dweight = tl.sum(sum_gd, 0) * rstd
    row = program * samples + sample
    channel_sums += row.to(tl.int64) * (2 * C) + channel
    tl.store(channel_sums, dweight, mask=channel_exists)
    tl.store(channel_sums + C, dbias, mask=channel_exists)
    shape: tl.constexpr = (BLOCK_GROUPS, PADDED)
    group_sums += (row * GROUPS + group) * 2
    tl.store(group_sums, tl.sum(tl.reshape(w * dbias, shape), 1), mask=group_exists)
    tl.store(group_sums + 1, tl.sum(tl.reshape(w * dweight, shape), 1), mask=group_exists)


@triton.jit
def sum_rows(rows, column, exists, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Return the sums over (PARTS, WIDTH) of some of its columns."""
    chunk: tl.constexpr = 64
    part = tl.arange(0, chunk)[:, None]
    sums = tl.zeros((chunk, column.shape[0]), tl.float32)
    for start in range(0, PARTS, chunk):
        mask = (start + part < PARTS) & exists[None, :]
        sums += tl.load(rows + (start + part).to(tl.int64) * WIDTH + column[None, :], mask=mask, other=0.0)
    return tl.sum(sums, 0)


@triton.jit
def _sum_parameters(channel_sums, dweight, dbias, first, C: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum (PARTS, 2, C) over the parts, for COLUMNS channels."""
    column = first + tl.arange(0, COLUMNS)
    sum_w = sum_rows(channel_sums, column, column < C, 2 * C, PARTS)
    sum_b = sum_rows(channel_sums + C, column, column < C, 2 * C, PARTS)
    tl.store(dweight + column, sum_w.to(dweight.dtype.element_ty), mask=column < C)
    tl.store(dbias + column, sum_b.to(dbias.dtype.element_ty), mask=column < C)


@triton.jit
def gradient_terms(
    group_sums, statistics, sample, samples, group, exists, GROUPS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge the sums (PARTS, samples, GROUPS, 2) for some groups of a sample.

    Returns mean, 1 / deviation, and the constant and the slope of dx = scale * g - (slope * (x - mean) + constant).
    """
    part = tl.arange(0, CHUNK)[:, None]
    sum_1 = tl.zeros((CHUNK, group.shape[0]), tl.float32)
    sum_2 = tl.zeros((CHUNK, group.shape[0]), tl.float32)
    for start in range(0, PARTS, CHUNK):
        mask = (start + part < PARTS) & exists[None, :]
        pointers = group_sums + (((start + part) * samples + sample) * GROUPS + group[None, :]) * 2
        sum_1 += tl.load(pointers, mask=mask, other=0.0)
        sum_2 += tl.load(pointers + 1, mask=mask, other=0.0)
    statistics += (sample * GROUPS + group) * 3
    rstd = _load(statistics + 2, exists, True)
    share = rstd / tl.maximum(_load(statistics, exists, True), 1.0)
    mean = _load(statistics + 1, exists, True)
    return mean, rstd, tl.sum(sum_1, 0) * share, tl.sum(sum_2, 0) * share * rstd


@triton.jit(do_not_specialize=["samples"])
def backward_coefficients_kernel(
    group_sums, weight, bias, statistics, coefficients, samples,
    C: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add up sums, and write what ``input_gradient_kernel`` applies: (samples, 5, C).

    A program for each group of a sample; in what it writes, mean, scale, shift, slope and constant of each channel.
    """
    group, sample = tl.program_id(0) + tl.arange(0, 1), tl.program_id(2)
    mean, rstd, constant, slope = gradient_terms(
        group_sums, statistics, sample, samples, group, group < GROUPS, GROUPS, PARTS, CHUNK
    )  # fmt: skip
    within = tl.arange(0, PADDED)
    channel, exists = group * (C // GROUPS) + within, within < C // GROUPS
    coefficients += sample * (5 * C) + channel
    tl.store(coefficients, tl.broadcast_to(mean, (PADDED,)), mask=exists)
    tl.store(coefficients + C, rstd * _load(weight + channel, exists, True), mask=exists)
    tl.store(coefficients + 2 * C, _load(bias + channel, exists, True), mask=exists)
    tl.store(coefficients + 3 * C, tl.broadcast_to(slope, (PADDED,)), mask=exists)
    tl.store(coefficients + 4 * C, tl.broadcast_to(constant, (PADDED,)), mask=exists)


@triton.jit(do_not_specialize=["samples"])
def input_gradient_kernel(
    x, weight, bias, statistics, coefficients, dy, dpooled, argmax, group_sums, channel_sums, dx, dweight, dbias,
    samples, dy_stride, dy_sample_stride,
    C: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, PADDED: tl.constexpr,
    PROGRAMS: tl.constexpr, TILES: tl.constexpr, TOTAL: tl.constexpr, POOL: tl.constexpr, MASKED: tl.constexpr,
    HAS_DY: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, CHANNEL_PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x.

    With PARTS, each program adds up the sums of its sample first. The first programs reduce
    (CHANNEL_PARTS, 2, C) to the parameters' gradients instead.
    """
    reducing: tl.constexpr = (C + COLUMNS - 1) // COLUMNS
    program, block, sample = tl.program_id(0) - reducing, tl.program_id(1), tl.program_id(2)
    if program < 0:
        if block + sample == 0:
            _sum_parameters(
                channel_sums, dweight, dbias, (program + reducing) * COLUMNS, C, CHANNEL_PARTS, COLUMNS
            )  # fmt: skip
    else:
        channel, channel_exists = channel_lanes(block, C, GROUPS, BLOCK_GROUPS, PADDED)
        if PARTS == 0:
            row = coefficients + sample * (5 * C) + channel
            mean = _load(row, channel_exists, MASKED)
            scale = _load(row + C, channel_exists, MASKED)
            shift = _load(row + 2 * C, channel_exists, MASKED)
            slope = _load(row + 3 * C, channel_exists, MASKED)
            constant = _load(row + 4 * C, channel_exists, MASKED)
        else:
            group, group_exists = group_lanes(block, GROUPS, BLOCK_GROUPS)
            group_mean, rstd, group_constant, group_slope = gradient_terms(
                group_sums, statistics, sample, samples, group, group_exists, GROUPS, PARTS, CHUNK
            )  # fmt: skip
            mean = spread(group_mean, PADDED)
            scale = spread(rstd, PADDED) * _load(weight + channel, channel_exists, True)
            shift = _load(bias + channel, channel_exists, True)
            slope, constant = spread(group_slope, PADDED), spread(group_constant, PADDED)
        mean, scale, shift = mean[None, None, :], scale[None, None, :], shift[None, None, :]
        slope, constant = slope[None, None, :], constant[None, None, :]

        offset = sample.to(tl.int64) * (DEPTH * HEIGHT * WIDTH * C)
        x += offset
        dx += offset
        if HAS_DY:
            dy += sample.to(tl.int64) * dy_sample_stride
        if POOL:
            pooled_offset = sample.to(tl.int64) * ((DEPTH // 2) * (HEIGHT // 2) * (WIDTH // 2) * C)
            dpooled += pooled_offset
            argmax += pooled_offset
        for step in range(TILES):
            tile = program + step * PROGRAMS
            first, distance, exists = _tile(tile, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL)
            mask = exists[:, :, None] & channel_exists[None, None, :]
            offsets = (distance * C)[:, :, None] + channel[None, None, :]
            base = first.to(tl.int64) * C
            d = _load(x + base + offsets, mask, MASKED) - mean
            g = _gated_gradient(
                d, scale, shift, dy, dpooled, argmax, first, distance, mask, tile, channel, channel_exists, dy_stride,
                C, DEPTH, HEIGHT, WIDTH, UNROLL, ROWS, POOL, MASKED, HAS_DY,
            )  # fmt: skip
            _store(dx + base + offsets, scale * g - (slope * d + constant), mask, MASKED)
