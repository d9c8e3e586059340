"""The kernels compiled without a GPU: what each takes at a given shape."""

from __future__ import annotations

from typing import Any

from scaffold.kernels import resources
from scaffold.kernels.group_norm import plan

H200 = plan.Device(multiprocessors=132, lanes=32, tuned=True)


def compile_pass(
    kernel: plan.Pass, problem: plan.Problem, dtype: str = "bf16", choice: plan.Choice | None = None
) -> Any:
    """Compile one pass for a Hopper GPU.

    Args:
        kernel: the pass.
        problem: the shape; pooling does not concern the statistics.
        dtype: Triton's name of the type of x.
        choice: overrides the tuned choice.

    Returns:
        Triton's compiled kernel.
    """
    from scaffold.kernels.group_norm import kernels

    function = getattr(kernels, f"{kernel}_kernel")
    activations = dict.fromkeys(("x", "y", "dy", "dx", "pooled", "dpooled"), f"*{dtype}")
    types = {"argmax": "*u8", "samples": "i32", "eps": "fp32", "dy_stride": "i32", "dy_sample_stride": "i64"}
    problem = problem._replace(pooled=problem.pooled and kernel != "statistics")
    launch = plan.plan(kernel, problem, H200) if choice is None else plan.layout(problem, H200, choice)
    constants = dict(launch.constants) | {"HAS_DY": True, "PLANES": 1}
    constants |= plan.MERGED if plan.merges_first(problem) else plan.merging(launch.programs, launch)
    constants |= plan.summing(launch.programs, problem.channels)[0]
    constants |= {} if problem.pooled else dict.fromkeys(("pooled", "argmax", "dpooled"))
    constants = {key: value for key, value in constants.items() if key in function.arg_names}
    options = {"num_warps": launch.warps}
    strides = ("dy_stride", "dy_sample_stride")
    return resources.compile_offline(function, constants, activations | types, options, divisible=strides)
