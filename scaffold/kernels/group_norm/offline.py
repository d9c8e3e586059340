"""The kernels compiled without a GPU: what each takes at a given shape."""

from __future__ import annotations

from typing import Any

from scaffold.kernels import resources
from scaffold.kernels.group_norm import plan

H200 = plan.Device(multiprocessors=132, lanes=32, tuned=True)

_REDUCING: dict[plan.Merge, plan.Pass] = {
    "forward_coefficients": "statistics", "backward_coefficients": "gradient_sums",
}  # fmt: skip
"""Kernel that merges: the pass whose results it merges."""


def compile_pass(
    kernel: plan.Pass, problem: plan.Problem, dtype: str = "bf16", choice: plan.Choice | None = None,
    device: plan.Device = H200, arch: int | str = 90,
) -> Any:  # fmt: skip
    """Compile one pass.

    Args:
        kernel: the pass.
        problem: the shape; pooling does not concern the statistics.
        dtype: Triton's name of the type of x.
        choice: overrides the tuned choice.
        device: to plan the launch for.
        arch: to compile for, as ``resources.compile_offline`` takes it.

    Returns:
        Triton's compiled kernel.
    """
    from scaffold.kernels.group_norm import kernels

    function = getattr(kernels, f"{kernel}_kernel")
    activations = dict.fromkeys(("x", "y", "dy", "dx", "pooled", "dpooled"), f"*{dtype}")
    types = {"argmax": "*u8", "samples": "i32", "eps": "fp32", "dy_stride": "i32", "dy_sample_stride": "i64"}
    problem = problem._replace(pooled=problem.pooled and kernel != "statistics")
    launch = plan.plan(kernel, problem, device) if choice is None else plan.layout(problem, device, choice)
    constants = dict(launch.constants) | {"HAS_DY": True, "PLANES": 1}
    constants |= plan.MERGED if plan.merges_first(problem) else plan.merging(launch.programs, launch)
    constants |= plan.summing(launch.programs, problem.channels)[0]
    constants |= {} if problem.pooled else dict.fromkeys(("pooled", "argmax", "dpooled"))
    constants = {key: value for key, value in constants.items() if key in function.arg_names}
    options = {"num_warps": launch.warps}
    strides = ("dy_stride", "dy_sample_stride")
    return resources.compile_offline(function, constants, activations | types, options, arch, strides)


def compile_merge(
    kernel: plan.Merge, problem: plan.Problem, device: plan.Device = H200, arch: int | str = 90
) -> Any:  # fmt: skip
    """Compile the launch that merges the partial results of a reducing pass; arguments as of ``compile_pass``."""
    from scaffold.kernels.group_norm import kernels

    parts = plan.plan(_REDUCING[kernel], problem, device).programs
    launch = plan.merger(parts, problem.channels, problem.groups)
    function = getattr(kernels, f"{kernel}_kernel")
    return resources.compile_offline(
        function, dict(launch.constants), {"samples": "i32", "eps": "fp32"}, {"num_warps": launch.warps}, arch
    )
