"""Host side of the kernels: scratch memory, results, and what is launched on them.

All 5-D tensors are dense in channels-last order, except dy, which may be a slice of channels of such a
tensor. "Planes" are the depth planes of all samples, treated as samples of their own.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scaffold.kernels import hardware
from scaffold.kernels.group_norm.plan import (
    MERGED,
    Device,
    Merge,
    Pass,
    Plan,
    Problem,
    merger,
    merges_first,
    merging,
    plan,
    plan_planes,
    summing,
)
from scaffold.kernels.ladder import launch_region

OP, POOL_OP = "group_norm_relu", "group_norm_relu_pool"
"""Names of the operations, which share their kernels and switches; a failure is told of the one that was called."""


class Normalised(NamedTuple):
    """What the forward passes make."""

    y: Tensor
    """Like x."""
    statistics: Tensor
    """(N, groups, 3): count, mean, 1 / sqrt(variance + eps); float32."""
    pooled: Tensor
    """(N, C, D // 2, H // 2, W // 2), empty without pooling."""
    argmax: Tensor
    """Like pooled, uint8: 4 d + 2 h + w of the maximum in its window."""


class GradientSums(NamedTuple):
    """What the first backward pass makes; g is the gradient of the pre-activations."""

    of_groups: Tensor
    """(parts, samples, groups, 2): sums of g * weight and g * weight * xhat; float32."""
    of_channels: Tensor
    """(parts, samples, 2, C): sums of g * xhat and of g; float32."""


class Incoming(NamedTuple):
    """The gradients that arrive; at least one of ``dy`` and ``dpooled``."""

    dy: Tensor | None
    dpooled: Tensor | None = None
    argmax: Tensor | None = None
    """Present if ``dpooled`` is."""


def moments(x: Tensor, groups: int, *, planes: bool = False, op: str = OP) -> Tensor:
    """Return counts, means and sums of squared deviations: (parts, N or N * D planes, groups, 3), float32."""
    with launch_region(op, on=x):
        _, launch = _plan("statistics", x, groups, planes=planes)
        samples = x.shape[0] * (x.shape[2] if planes else 1)
        out = x.new_empty((launch.programs, samples, groups, 3), dtype=torch.float32)
        run("statistics", launch, samples, (x, out, samples))
        return out


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, moments: Tensor, groups: int, eps: float, *,
    pool: bool = False, op: str = OP,
) -> Normalised:  # fmt: skip
    """Merge moments (parts, N, groups, 3) and apply them."""
    with launch_region(op, on=x):
        problem, launch = _plan("normalise", x, groups, pool=pool)
        N, C, *extents = x.shape
        pooled_shape = (N, C, *(extent // 2 for extent in extents)) if pool else (0, C, 1, 1, 1)
        last = torch.channels_last_3d
        result = Normalised(
            y=torch.empty_like(x, memory_format=last),
            statistics=x.new_empty((N, groups, 3), dtype=torch.float32),
            pooled=torch.empty(pooled_shape, dtype=x.dtype, device=x.device, memory_format=last),
            argmax=torch.empty(pooled_shape, dtype=torch.uint8, device=x.device, memory_format=last),
        )
        coefficients, constants = None, merging(moments.shape[0], launch)
        if merges_first(problem):
            coefficients, constants = x.new_empty((N, 3, C), dtype=torch.float32), MERGED
            arguments: tuple[Any, ...] = (moments, weight, bias, result.statistics, coefficients, N, eps)
            run("forward_coefficients", merger(moments.shape[0], C, groups), N, arguments)
        arguments = (
            x, weight, bias, moments, result.statistics, coefficients, result.y, result.pooled, result.argmax, N, eps
        )  # fmt: skip
        run("normalise", launch, N, arguments, constants)
        return result


def gradient_sums(
    incoming: Incoming, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, groups: int, *,
    planes: bool = False, op: str = OP,
) -> GradientSums:  # fmt: skip
    """Run the first backward pass over samples or planes."""
    with launch_region(op, on=x):
        _, launch = _plan("gradient_sums", x, groups, planes=planes, pool=incoming.dpooled is not None)
        depth = x.shape[2] if planes else 1
        samples = x.shape[0] * depth
        sums = GradientSums(
            x.new_empty((launch.programs, samples, groups, 2), dtype=torch.float32),
            x.new_empty((launch.programs, samples, 2, x.shape[1]), dtype=torch.float32),
        )
        dy, dy_strides = _strided(incoming.dy)
        arguments = (
            x, weight, bias, statistics, dy, incoming.dpooled, incoming.argmax, *sums, samples, *dy_strides
        )  # fmt: skip
        run("gradient_sums", launch, samples, arguments, {"HAS_DY": dy is not None, "PLANES": depth})
        return sums


def input_gradient(
    incoming: Incoming, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, sums: GradientSums, groups: int,
    *, op: str = OP,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, weight and bias; ``sums.of_groups`` is (parts, N, groups, 2)."""
    with launch_region(op, on=x):
        problem, launch = _plan("input_gradient", x, groups, pool=incoming.dpooled is not None)
        N, C = x.shape[:2]
        dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        dy, dy_strides = _strided(incoming.dy)
        coefficients, constants = None, merging(sums.of_groups.shape[0], launch)
        if merges_first(problem):
            coefficients, constants = x.new_empty((N, 5, C), dtype=torch.float32), MERGED
            arguments: tuple[Any, ...] = (sums.of_groups, weight, bias, statistics, coefficients, N)
            run("backward_coefficients", merger(sums.of_groups.shape[0], C, groups), N, arguments)
        arguments = (
            x, weight, bias, statistics, coefficients, dy, incoming.dpooled, incoming.argmax, *sums, dx, dweight, dbias,
            N, *dy_strides,
        )  # fmt: skip
        rows, extra = summing(sums.of_channels.shape[0] * sums.of_channels.shape[1], C)
        run("input_gradient", launch, N, arguments, {"HAS_DY": dy is not None, **constants, **rows}, extra)
        return dx, dweight, dbias


def readable(dy: Tensor) -> Tensor:
    """Return ``dy`` itself if the kernels can read it in place, else a dense copy."""
    N, C, *extents = dy.shape
    step = _voxel_stride(dy)
    wanted = [step * extents[1] * extents[2], step * extents[2], step]
    uniform = all(
        extent == 1 or stride == want for extent, stride, want in zip(extents, dy.stride()[2:], wanted, strict=True)
    )
    # The kernels take 32-bit distances within a tile: a voxel must not overlap the next, nor lie far from it.
    if uniform and (C == 1 or dy.stride(1) == 1) and C <= step <= 64 * C and (N == 1 or dy.stride(0) >= 0):
        return dy
    return dy.contiguous(memory_format=torch.channels_last_3d)


def run(
    kernel: Pass | Merge, launch: Plan, samples: int, arguments: tuple[Any, ...],
    constants: dict[str, Any] | None = None, extra_programs: int = 0,
) -> None:  # fmt: skip
    """Launch one kernel on the current device."""
    from scaffold.kernels.group_norm import kernels

    grid = (launch.programs + extra_programs, launch.blocks, samples)
    getattr(kernels, f"{kernel}_kernel")[grid](
        *arguments, **dict(launch.constants), **(constants or {}), num_warps=launch.warps
    )


def _plan(kernel: Pass, x: Tensor, groups: int, *, planes: bool = False, pool: bool = False) -> tuple[Problem, Plan]:
    N, C, D, H, W = x.shape
    device = device_of(x.device)
    if planes:
        problem = Problem(C, groups, 1, H, W, N * D, x.element_size(), False)
        return problem, plan_planes(kernel, problem, device)
    problem = Problem(C, groups, D, H, W, N, x.element_size(), pool)
    return problem, plan(kernel, problem, device)


@functools.cache
def device_of(device: torch.device) -> Device:
    """Return what plans need to know of ``device``; one that is no GPU is Triton's interpreter."""
    multiprocessors = hardware.multiprocessors(device)
    if device.type != "cuda":
        return Device(multiprocessors, lanes=32)
    properties = torch.cuda.get_device_properties(device)
    return Device(multiprocessors, properties.warp_size, hardware.is_tuned(properties.name))


def _strided(dy: Tensor | None) -> tuple[Tensor | None, tuple[int, int]]:
    return dy, (0, 0) if dy is None else (_voxel_stride(dy), dy.stride(0))


def _voxel_stride(t: Tensor) -> int:
    """Elements from one voxel to the next, told by the innermost extent that has two."""
    _, C, D, H, W = t.shape
    if W > 1:
        return t.stride(4)
    if H > 1:
        return t.stride(3)
    return t.stride(2) if D > 1 else C
