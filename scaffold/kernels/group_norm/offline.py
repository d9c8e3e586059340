"""The kernels compiled without a GPU: what each takes at a given shape."""

from __future__ import annotations

from typing import Any, get_args

from scaffold.kernels import resources
from scaffold.kernels.group_norm import plan

H200 = plan.Device(multiprocessors=132, lanes=32)


def compile_passes(problem: plan.Problem, dtype: str = "bf16", choice: plan.Choice | None = None) -> dict[str, Any]:
    """Compile the four passes for a Hopper GPU.

    Args:
        problem: the shape.
        dtype: Triton's name of the type of x.
        choice: overrides the tuned choices.

    Returns:
        {pass: Triton's compiled kernel}.
    """
    from scaffold.kernels.group_norm import kernels

    activations = dict.fromkeys(("x", "y", "dy", "dx", "pooled", "dpooled"), f"*{dtype}")
    types = {"argmax": "*u8", "samples": "i32", "eps": "fp32", "dy_stride": "i32", "dy_sample_stride": "i64"}
    reduced = plan.plan("statistics", problem._replace(pooled=False), H200).programs
    compiled = {}
    for name in get_args(plan.Pass):
        shape = problem._replace(pooled=problem.pooled and name != "statistics")
        launch = plan.plan(name, shape, H200) if choice is None else plan.layout(shape, H200, choice)
        kernel = getattr(kernels, f"{name}_kernel")
        constants = dict(launch.constants) | {"HAS_DY": True, "PLANES": 1} | plan.merging(reduced, launch)
        constants |= plan.summing(reduced, problem.channels)[0]
        constants |= {} if shape.pooled else dict.fromkeys(("dpooled", "argmax"))
        constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
        compiled[name] = resources.compile_offline(
            kernel,
            constants,
            activations | types,
            {"num_warps": launch.warps},
            divisible=("dy_stride", "dy_sample_stride"),
        )
    return compiled
