"""Host side of the kernels: scratch memory, results, and what is launched on them.

All 5-D tensors are dense in channels-last order, weights are (classes, C).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scaffold.kernels.group_norm import launch as group_norm
from scaffold.kernels.group_norm.plan import Plan, merging, summing
from scaffold.kernels.head.plan import Pass, Problem, plan
from scaffold.kernels.ladder import launch_region

OP = "group_norm_relu_pointwise"


def logits(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the logits, and count, mean and 1 / sqrt(variance + eps) of each group: (N, groups, 3), float32."""
    moments = group_norm.moments(x, groups, op=OP)
    with launch_region(OP, on=x):
        N, classes = x.shape[0], weight.shape[0]
        shape = (N, classes, *x.shape[2:])
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
        statistics = x.new_empty((N, groups, 3), dtype=torch.float32)
        launch = _plan("logits", x, groups, classes)
        arguments = (x, norm_weight, norm_bias, moments, statistics, weight, bias, out, N, eps)
        run("logits", launch, N, arguments, merging(moments.shape[0], launch))
        return out, statistics


def gradients(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, statistics: Tensor, dlogits: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and one row of those of norm_weight, norm_bias, weight and bias, float32."""
    with launch_region(OP, on=x):
        N, classes = x.shape[0], weight.shape[0]
        width = 2 * norm_weight.numel() + weight.numel() + classes
        launch = _plan("gradient_sums", x, groups, classes)
        parts = launch.programs
        sums = (
            x.new_empty((parts, N, groups, 2), dtype=torch.float32),
            x.new_empty((parts, N, width), dtype=torch.float32),
        )
        operands = (x, norm_weight, norm_bias, statistics, weight, dlogits)
        run("gradient_sums", launch, N, (*operands, *sums, N))

        dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
        dparameters = x.new_empty(width, dtype=torch.float32)
        launch = _plan("input_gradient", x, groups, classes)
        rows, extra = summing(parts * N, width)
        constants = {**merging(parts, launch), "ROWS": rows["CHANNEL_PARTS"], "COLUMNS": rows["COLUMNS"]}
        run("input_gradient", launch, N, (*operands, *sums, dx, dparameters, N), constants, extra)
        return dx, dparameters


def run(
    kernel: Pass, launch: Plan, samples: int, arguments: tuple[Any, ...], constants: dict[str, Any] | None = None,
    extra_programs: int = 0,
) -> None:  # fmt: skip
    """Launch one kernel."""
    from scaffold.kernels.head import kernels

    getattr(kernels, f"{kernel}_kernel")[launch.programs + extra_programs, samples](
        *arguments, **dict(launch.constants), **(constants or {}), num_warps=launch.warps
    )


def _plan(kernel: Pass, x: Tensor, groups: int, classes: int) -> Plan:
    N, C, *extents = x.shape
    problem = Problem(C, groups, classes, torch.Size(extents).numel(), N, x.element_size())
    return plan(kernel, problem, group_norm.device_of(x.device))
