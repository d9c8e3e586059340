"""Gradient norm and Adam over all parameters at once, in three launches.

The tensors are cut into chunks of CHUNK elements in the order of their memory, one program a chunk; a
chunk lies in one tensor. ``addresses`` (5, N_TENSORS) int64 holds where each tensor's parameter, gradient,
first moment, second moment and step count lie. Only the last launch changes any of them, so that a launch
that fails leaves nothing half done.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _at(addresses, row: tl.constexpr, tensor, N_TENSORS: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(addresses + row * N_TENSORS + tensor).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _sum_of_squares(gradient, left, CHUNK: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for offset in range(0, CHUNK, BLOCK):
        index = offset + lanes
        g = tl.load(gradient + index, mask=index < left, other=0.0) if MASKED else tl.load(gradient + index)
        total += g * g
    return tl.sum(total)


@triton.jit
def norm_kernel(
    addresses, sizes, chunk_tensor, chunk_number, partials,
    N_TENSORS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write the sum of squares of each chunk of the gradients."""
    chunk = tl.program_id(0)
    tensor = tl.load(chunk_tensor + chunk)
    start = tl.load(chunk_number + chunk).to(tl.int64) * CHUNK
    left = tl.load(sizes + tensor) - start
    gradient = _at(addresses, 1, tensor, N_TENSORS, ALIGNED) + start
    # Whole chunks need no mask, which would forbid wide accesses.
    if left >= CHUNK:
        tl.store(partials + chunk, _sum_of_squares(gradient, left, CHUNK, BLOCK, False))
    else:
        tl.store(partials + chunk, _sum_of_squares(gradient, left, CHUNK, BLOCK, True))


@triton.jit
def scalars_kernel(
    addresses, partials, rate, coefficient, scalars, MAX_NORM: tl.constexpr, LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr, N_CHUNKS: tl.constexpr, N_TENSORS: tl.constexpr, BLOCK: tl.constexpr,
    TENSORS: tl.constexpr,
):  # fmt: skip
    """Write the clip coefficient, and for each tensor lr / (1 - beta1^t), sqrt(1 - beta2^t) and t; one program.

    t is the step to come. The powers are float64: 1 - beta2^t loses four of float32's seven digits at t = 1.
    """
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N_CHUNKS, BLOCK):
        total += tl.load(partials + start + lanes, mask=start + lanes < N_CHUNKS, other=0.0)
    ratio = tl.div_rn(tl.full((), MAX_NORM, tl.float32), tl.sqrt_rn(tl.sum(total)) + 1e-6)
    # Not tl.minimum: a norm that is NaN must spoil the parameters for all to see, as it does in PyTorch.
    tl.store(coefficient, tl.where(ratio > 1.0, 1.0, ratio))

    tensor = tl.arange(0, TENSORS)
    exists = tensor < N_TENSORS
    steps = tl.load(addresses + 4 * N_TENSORS + tensor, mask=exists, other=0).to(tl.pointer_type(tl.float32))
    step = tl.load(steps, mask=exists, other=0.0) + 1.0
    log_beta1, log_beta2 = tl.full((), LOG_BETA1, tl.float64), tl.full((), LOG_BETA2, tl.float64)
    correction1 = 1.0 - tl.exp(step.to(tl.float64) * log_beta1)
    correction2 = 1.0 - tl.exp(step.to(tl.float64) * log_beta2)
    step_size = (tl.load(rate).to(tl.float64) / correction1).to(tl.float32)
    tl.store(scalars + tensor, step_size, mask=exists)
    tl.store(scalars + N_TENSORS + tensor, tl.sqrt(correction2).to(tl.float32), mask=exists)
    tl.store(scalars + 2 * N_TENSORS + tensor, step, mask=exists)


@triton.jit
def _update(
    parameter, gradient, exp_avg, exp_avg_sq, left, clip, step_size, correction,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, BLOCK)
    for offset in range(0, CHUNK, BLOCK):
        index = offset + lanes
        if MASKED:
            inside = index < left
            g = tl.load(gradient + index, mask=inside)
            m = tl.load(exp_avg + index, mask=inside)
            v = tl.load(exp_avg_sq + index, mask=inside)
            p = tl.load(parameter + index, mask=inside)
        else:
            g = tl.load(gradient + index)
            m = tl.load(exp_avg + index)
            v = tl.load(exp_avg_sq + index)
            p = tl.load(parameter + index)
        g = g * clip
        m = m + (1.0 - BETA1) * (g - m)
        v = BETA2 * v + (1.0 - BETA2) * g * g
        p = p - tl.div_rn(step_size * m, tl.div_rn(tl.sqrt_rn(v), correction) + EPS)
        if MASKED:
            tl.store(exp_avg + index, m, mask=inside)
            tl.store(exp_avg_sq + index, v, mask=inside)
            tl.store(parameter + index, p, mask=inside)
        else:
            tl.store(exp_avg + index, m)
            tl.store(exp_avg_sq + index, v)
            tl.store(parameter + index, p)


@triton.jit
def update_kernel(
    addresses, sizes, chunk_tensor, chunk_number, coefficient, scalars,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, N_TENSORS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Update each chunk of parameters and moments, and each tensor's step count."""
    # From the end: the gradients that the norm read last are in the cache still.
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    tensor = tl.load(chunk_tensor + chunk)
    number = tl.load(chunk_number + chunk)
    clip = tl.load(coefficient)
    step_size = tl.load(scalars + tensor)
    correction = tl.load(scalars + N_TENSORS + tensor)
    if number == 0:
        tl.store(_at(addresses, 4, tensor, N_TENSORS, False), tl.load(scalars + 2 * N_TENSORS + tensor))
    start = number.to(tl.int64) * CHUNK
    left = tl.load(sizes + tensor) - start
    parameter = _at(addresses, 0, tensor, N_TENSORS, ALIGNED) + start
    gradient = _at(addresses, 1, tensor, N_TENSORS, ALIGNED) + start
    exp_avg = _at(addresses, 2, tensor, N_TENSORS, ALIGNED) + start
    exp_avg_sq = _at(addresses, 3, tensor, N_TENSORS, ALIGNED) + start
    if left >= CHUNK:
        _update(
            parameter, gradient, exp_avg, exp_avg_sq, left, clip, step_size, correction,
            BETA1, BETA2, EPS, CHUNK, BLOCK, False,
        )  # fmt: skip
    else:
        _update(
            parameter, gradient, exp_avg, exp_avg_sq, left, clip, step_size, correction,
            BETA1, BETA2, EPS, CHUNK, BLOCK, True,
        )  # fmt: skip
