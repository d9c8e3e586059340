"""Every kernel of the package as training launches it, compiled on a machine without the GPU.

``SPECIMENS`` is what ``tests/kernels/test_every_kernel.py`` goes through; the functions of the operations also take
other sizes and changed constants, for the sharper tests beside each operation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mi300
import torch

from scaffold.kernels.adam import driver as adam_driver
from scaffold.kernels.adam import plan as adam_plan
from scaffold.kernels.convolution import pointwise_plan, stem, stem_plan
from scaffold.kernels.convolution import upsample_plan as step_up
from scaffold.kernels.gated_stack import offline as gated_stack
from scaffold.kernels.gated_stack.driver import Launcher
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Precision
from scaffold.kernels.group_norm import offline as group_norm
from scaffold.kernels.group_norm.plan import Device, Problem, merging, summing
from scaffold.kernels.head import plan as head_plan
from scaffold.kernels.resources import compile_offline
from scaffold.kernels.segmentation import plan as segmentation_plan


class Target(NamedTuple):
    """A GPU that need not be there."""

    arch: int | str
    device: Device
    shared_bytes: int
    """The most that a program can have."""


H200 = Target(90, group_norm.H200, 227 * 1024)
MI300 = Target(mi300.PROCESSOR, Device(multiprocessors=304, lanes=64), mi300.SHARED_BYTES)
TARGETS = (H200, MI300)

CLASSES = 6
STACK = StackDims(2, 646_000, 3, 32, 1)
"""The first case of the gated stack's benchmark."""
STEP_UP = step_up.Sizes(1, 64, (64,) * 3, (128,) * 3)
TOP_LEVEL = Problem(64, 8, 256, 256, 256, 1, 2, pooled=True)
DEEP_LEVEL = Problem(512, 8, 32, 32, 32, 1, 2, pooled=False)
"""Small enough that each program merges partial results."""


def adam(name: str, target: Target = H200, **changes: Any) -> Any:
    """Compile ``{name}_kernel`` for 64 parameters, all aligned."""
    from scaffold.kernels.adam import kernels

    tile = adam_plan.TILE
    chunked = {"N_TENSORS": 64, "CHUNK": tile.chunk, "BLOCK": tile.block, "ALIGNED": True}
    constants = {
        "norm": chunked,
        "scalars": {
            "MAX_NORM": 1.0, "LOG_BETA1": -0.1, "LOG_BETA2": -1e-3, "N_CHUNKS": 5531, "N_TENSORS": 64,
            "BLOCK": adam_driver._SUMMANDS, "TENSORS": 64,
        },
        "update": chunked | {"BETA1": 0.9, "BETA2": 0.999, "EPS": 1e-8},
    }[name]  # fmt: skip
    table = {"addresses": "*i64", "sizes": "*i64", "chunk_tensor": "*i32", "chunk_number": "*i32", "rate": "*fp64"}
    options = {"num_warps": 8 if name == "scalars" else tile.num_warps}
    return compile_offline(getattr(kernels, f"{name}_kernel"), constants | changes, table, options, target.arch)


def pointwise(
    name: str, target: Target = H200, dtype: str = "*bf16", limits: Mapping[str, int] | None = None, **changes: Any
) -> Any:
    """Compile ``{name}_kernel`` of the convolution that makes the logits of 128^3 voxels.

    ``limits`` are further options of the compiler.
    """
    from scaffold.kernels.convolution import pointwise_kernels

    itemsize = 2 if dtype == "*bf16" else 4
    launch = pointwise_plan.plan(64, CLASSES, 128**3, itemsize, target.device.multiprocessors)
    constants = {
        "C_IN": 64, "C_OUT": CLASSES, "WIDE_IN": launch.wide_in, "WIDE_OUT": launch.wide_out, "BLOCK": launch.block,
        "TURNS": launch.turns,
    }  # fmt: skip
    types = dict.fromkeys(("x", "out", "gradient", "dx"), dtype) | {"rows": "i32"}
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, **(limits or {})}
    kernel = getattr(pointwise_kernels, f"{name}_kernel")
    return compile_offline(kernel, constants | changes, types, options, target.arch)


def stem_convolution(
    name: str, target: Target = H200, *, channels: int = 3, out_channels: int = 64, half: bool = True,
    divisible: tuple[str, ...] = ("D", "H", "W"), **changes: Any,
) -> Any:  # fmt: skip
    """Compile ``{name}_kernel`` of the first convolution of 128^3 voxels."""
    import triton.language as tl

    from scaffold.kernels.convolution import stem_kernels

    plan = stem_plan.forward_launch if name == "forward" else stem_plan.weight_gradient_launch
    launch = plan(128, 128, 128, channels, out_channels, half, target.device.multiprocessors)
    constants = {
        "C": channels, "CO": out_channels, "PAIRS": launch.pairs, "K_TILE": launch.tile.k_tile,
        "K_TILES": launch.k_tiles, "TURNS": launch.turns, "DTYPE": tl.bfloat16 if half else tl.float32,
    }  # fmt: skip
    products = "*bf16" if half else "*fp32"
    types = dict.fromkeys(("D", "H", "W", "s_co", "s_ci", "s_d", "s_h", "s_w", "strips"), "i32")
    types |= {"y": products, "dy": products}
    options = {"num_warps": launch.num_warps, "num_stages": launch.tile.num_stages}
    if name == "weight_gradient_sum":
        constants = {
            "C": channels, "CO": out_channels, "K": launch.k_tiles * launch.tile.k_tile,
            "PARTIALS": 128 * launch.partials, "ROWS": stem._SUM_ROWS, "BLOCK": stem._SUM_BLOCK,
        }  # fmt: skip
        options, divisible = {"num_warps": 4}, ()
    kernel = getattr(stem_kernels, f"{name}_kernel")
    return compile_offline(kernel, constants | changes, types, options, target.arch, divisible)


def upsample(
    name: str, target: Target = H200, sizes: step_up.Sizes = STEP_UP, module: Any = None, **changes: Any
) -> Any:
    """Compile ``{name}_kernel`` of a step up in bfloat16; of ``module``, if that is given."""
    if module is None:
        from scaffold.kernels.convolution import upsample_kernels as module
    launch = upsample_launch(name, target, sizes)
    constants = launch.constants | ({} if name == "sum_shares" else {"UPCAST": False}) | changes
    options = {key: constants.pop(key) for key in ("num_warps", "num_stages")}
    types = dict.fromkeys(("x", "weight", "bias", "skip", "grad", "out"), "*bf16")
    types |= {"n_cells": "i32", "n_voxels": "i32", "size": "i32"}
    if name != "sum_shares" and constants.get("SPLITS", 1) > 1:
        types["out"] = "*fp32"
    kernel = getattr(module, f"{name}_kernel")
    return compile_offline(kernel, constants, types, options, target.arch)


def upsample_launch(name: str, target: Target = H200, sizes: step_up.Sizes = STEP_UP) -> step_up.Launch:
    """Return the launch that ``upsample`` compiles."""
    C, multiprocessors = sizes.channels, target.device.multiprocessors
    x, skip, grad = (
        step_up.dense_strides(*t) for t in ((2 * C, sizes.coarse), (C, sizes.fine), (2 * C, sizes.fine))
    )  # fmt: skip
    if name == "forward":
        tile = step_up.forward_tile(sizes, 2)
        return step_up.forward_launch(sizes, x, skip, tile, copy_skip=True, wide=False)
    if name == "input_gradient":
        tile = step_up.input_gradient_tile(sizes, 2, multiprocessors)
        return step_up.input_gradient_launch(sizes, grad, tile, wide=False)
    tile = step_up.weight_gradient_tile(sizes, 2, multiprocessors)
    if name == "sum_shares":
        return step_up.sum_shares_launch(tile.splits, 16 * C * C)
    return step_up.weight_gradient_launch(sizes, x, grad, tile, wide=False)


def segmentation(name: str, target: Target = H200, **changes: Any) -> Any:
    """Compile ``{name}_kernel`` of the sums of the loss over 128^3 voxels."""
    from scaffold.kernels.segmentation import kernels

    launch = segmentation_plan.plan(1, CLASSES, 128**3, target.device.multiprocessors)
    kernel = getattr(kernels, f"{name}_kernel")
    constants = {
        "CLASSES": CLASSES, "WIDTH": launch.width, "LAST": True, "PAIRED": True, "BLOCK": launch.block,
        "TURNS": launch.turns,
    } | changes  # fmt: skip
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = {"logits": "*bf16", "gradient": "*bf16", "labels": "*u8", "extent": "i32"}
    return compile_offline(kernel, constants, types, {"num_warps": launch.num_warps}, target.arch)


def head(
    name: Any, target: Target = H200, channels: int = 64, classes: int = CLASSES, voxels: int = 128**3,
    itemsize: int = 2, **changes: Any,
) -> Any:  # fmt: skip
    """Compile ``{name}_kernel`` of the last normalisation and the head in one."""
    from scaffold.kernels.head import kernels

    launch = head_plan.plan(name, head_plan.Problem(channels, 8, classes, voxels, 1, itemsize), target.device)
    kernel = getattr(kernels, f"{name}_kernel")
    rows, _ = summing(264, 2 * channels + classes * (channels + 1))
    constants = dict(launch.constants) | merging(264, launch)
    constants |= {"ROWS": rows["CHANNEL_PARTS"], "COLUMNS": rows["COLUMNS"]} | changes
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = dict.fromkeys(("x", "logits", "dlogits", "dx"), "*bf16" if itemsize == 2 else "*fp32")
    types |= {"samples": "i32", "eps": "fp32"}
    return compile_offline(kernel, constants, types, {"num_warps": launch.warps}, target.arch)


def norm(name: Any, target: Target = H200, problem: Problem = TOP_LEVEL) -> Any:
    """Compile ``{name}_kernel`` of the normalisation: a pass over the tensor, or the merging of its results."""
    if name.endswith("coefficients"):
        return group_norm.compile_merge(name, problem, target.device, target.arch)
    return group_norm.compile_pass(name, problem, device=target.device, arch=target.arch)


def stack(name: str, target: Target = H200, precision: Precision = "ieee") -> Any:
    """Compile ``{name}_kernel`` of the gated stack."""
    if name == "scale_gradient":
        from scaffold.kernels.gated_stack import kernels

        constants = {"R": STACK.row, "BLOCK_M": 8, "BLOCK_R": 1 << (STACK.row - 1).bit_length()}
        return compile_offline(
            kernels.scale_gradient_kernel, constants, {"n_rows": "i32"}, {"num_warps": 4}, target.arch
        )
    launcher = Launcher(STACK, precision, torch.device("cpu"))
    launches = itertools.chain(*gated_stack.LAYER_LAUNCHES.values())
    constants = next(constants for kernel, constants in launches if kernel == name)
    return gated_stack.compile_kernel(launcher, name, constants, target.arch)


class Specimen(NamedTuple):
    """A kernel at a size."""

    kernel: str
    """Its module below ``scaffold.kernels``, and its name."""
    form: str
    """Of several of the same kernel."""
    compile: Callable[[Target], Any]


def _forms(module: str, operation: Callable[..., Any], names: str, form: str = "", **arguments: Any) -> list[Specimen]:
    return [
        Specimen(f"{module}.{name}_kernel", form, functools.partial(operation, name, **arguments))
        for name in names.split()
    ]


_PASSES = "statistics normalise gradient_sums input_gradient"
_LAYER = "gate pointwise gemm tiled panel_scalar panel_vector forward_scalar forward_vector"

SPECIMENS = [
    *_forms("adam.kernels", adam, "norm scalars update"),
    *_forms("convolution.pointwise_kernels", pointwise, "forward backward"),
    *_forms("convolution.stem_kernels", stem_convolution, "forward weight_gradient weight_gradient_sum"),
    *_forms("convolution.upsample_kernels", upsample, "forward input_gradient weight_gradient sum_shares"),
    *_forms("gated_stack.kernels", stack, _LAYER, "ieee", precision="ieee"),
    *_forms("gated_stack.kernels", stack, _LAYER, "tf32x3", precision="tf32x3"),
    *_forms("gated_stack.kernels", stack, "scale_gradient"),
    *_forms("group_norm.kernels", norm, _PASSES, "top level", problem=TOP_LEVEL._replace(pooled=False)),
    *_forms("group_norm.kernels", norm, _PASSES, "pooled", problem=TOP_LEVEL),
    *_forms("group_norm.kernels", norm, _PASSES, "small", problem=DEEP_LEVEL),
    *_forms("group_norm.kernels", norm, "forward_coefficients backward_coefficients"),
    *_forms("head.kernels", head, "logits gradient_sums input_gradient"),
    *_forms("segmentation.kernels", segmentation, "sums gradient"),
]
"""Every kernel at least once."""
