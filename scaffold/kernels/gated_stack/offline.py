"""The stack's kernels compiled without a GPU: what a layer launches, and what each kernel takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from scaffold.kernels import resources
from scaffold.kernels.gated_stack.driver import Launcher
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Precision

_GEMM = {"scale": None, "A_EDGE_MAJOR": False, "OUT_EDGE_MAJOR": False, "HAS_SCALE": False}

LAYER_LAUNCHES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "forward": [("forward_scalar", {}), ("forward_vector", {})],
    "relay": [("gate", {}), ("pointwise", {"grad_logits": None, "KEEP_LOGITS": False}), ("gemm", _GEMM)],
    "fused": [("tiled", {"PART": 0}), ("tiled", {"PART": 1})],
    "panel": [("panel_scalar", {}), ("panel_vector", {})],
}
"""Path: the kernels of one gated layer, each with the constants that its caller gives."""


def compile_layer(path: str, dims: StackDims, precision: Precision, arch: int = 90) -> dict[str, Any]:
    """Compile the kernels of one gated layer.

    Args:
        path: key of ``LAYER_LAUNCHES``.
        dims: the sizes.
        precision: of the products.
        arch: CUDA compute capability times ten.

    Returns:
        {kernel: Triton's compiled kernel}.
    """
    launcher = Launcher(dims, precision, torch.device("cpu"))
    return {
        f"{name}{constants.get('PART', '')}": compile_kernel(launcher, name, constants, arch)
        for name, constants in LAYER_LAUNCHES[path]
    }


def compile_kernel(launcher: Launcher, name: str, constants: Mapping[str, Any], arch: int | str = 90) -> Any:
    """Compile what ``launcher`` would launch.

    Args:
        launcher: of any device.
        name: of the kernel, without ``_kernel``.
        constants: that its caller gives.
        arch: as ``resources.compile_offline`` takes it.

    Returns:
        Triton's compiled kernel.
    """
    extra = {"n_focus": launcher.dims.n_focus} if name == "gemm" else {}
    kernel, _, everything = launcher.specify(name, **constants, **extra)
    options = {key: everything.pop(key) for key in ("num_warps", "num_stages", "enable_fp_fusion")}
    return resources.compile_offline(kernel, everything, {"n_edge": "i32"}, options, arch)


def describe_layer(path: str, dims: StackDims, precision: Precision, arch: int = 90) -> str:
    """Return registers and spilled bytes of a layer's kernels, ``gate 40/0, ...``."""
    found = {
        name: resources.resources(compiled) for name, compiled in compile_layer(path, dims, precision, arch).items()
    }
    return ", ".join(f"{name} {r.registers}/{r.stack_bytes}" for name, r in found.items())
