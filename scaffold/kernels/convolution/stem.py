"""The first convolution of the network: few input channels, so that memory, not arithmetic, is its limit."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import hardware
from scaffold.kernels.autocast import compute_dtype
from scaffold.kernels.convolution import stem_plan
from scaffold.kernels.ladder import Ladder, Rung, launch_region
from scaffold.kernels.refusals import no_triton

OP, SWITCH = "stem_convolution", "SCAFFOLD_STEM_TRITON"

MAX_IN_CHANNELS = 4
OUT_CHANNELS = (16, 32, 64, 128)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LAST = torch.channels_last_3d

_SUM_ROWS, _SUM_BLOCK = 32, 32
"""Partial sums added at a time, and weights of one program, in the weight gradient's second stage."""


def stem_convolution(x: Tensor, weight: Tensor, site: Any = None) -> Tensor:
    """Convolve an image: 3^3, padding 1, stride 1, no bias.

    Contract of every implementation: operands are rounded to the autocast dtype where autocast is on;
    products are summed in float32 (without autocast, and for float32 operands, at full precision in the
    kernels, and as PyTorch is set to in the library); the output is in channels-last order if ``x`` is, in
    the dtype of the products; the gradient of ``weight`` has the weight's dtype and memory order.

    In the kernels, a value of ``x`` that is not finite spoils, along W, up to two voxels more at either side than
    the three whose stencil contains it.

    Args:
        x: (N, C, D, H, W), floating.
        weight: (CO, C, 3, 3, 3).
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Raises:
        RuntimeError: shapes or dtypes disagree.
    """
    return _ladder(x, weight, site=site)


def eager(x: Tensor, weight: Tensor) -> Tensor:
    """Do the same in plain PyTorch, on any device, in any dtype, differentiable to any order and in ``x`` too."""
    return F.conv3d(x, weight, padding=1)


def declines(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernels do not take this call, or None if they do. Never raises, imports nothing."""
    reason = no_triton(x, weight)
    if reason:
        return reason
    if weight.device != x.device:
        return f"the image is on {x.device} and the weight on {weight.device}"
    if x.dim() != 5 or not x.is_contiguous(memory_format=_LAST):
        return "the image is not in channels-last order"
    dtype = compute_dtype(x)
    if x.dtype not in _DTYPES or weight.dtype not in _DTYPES or dtype not in _DTYPES:
        return f"dtypes {x.dtype} and {weight.dtype}"
    if compute_dtype(weight) != dtype:
        return "image and weight differ in dtype"
    if not x.is_cuda and dtype != torch.float32:
        return "Triton's interpreter computes in float32 only"
    samples, channels, depth, height, width = x.shape
    if not 1 <= channels <= MAX_IN_CHANNELS or weight.dim() != 5 or tuple(weight.shape[1:]) != (channels, 3, 3, 3):
        return "not a 3^3 convolution of 1 to 4 channels"
    if weight.shape[0] not in OUT_CHANNELS:
        return f"{weight.shape[0]} output channels"
    if x.numel() == 0:
        return "an empty image"
    # Of a grid's third axis, and of 32-bit offsets in a plane and its neighbours.
    if samples * depth > 65535 or 3 * height * width * channels >= 2**31:
        return "too large"
    if x.requires_grad and torch.is_grad_enabled():
        return "the image needs a gradient"
    return None


def triton(x: Tensor, weight: Tensor) -> Tensor:
    """Do it with the kernels; only for calls that ``declines`` does not refuse."""
    return _forward_op(x, weight, compute_dtype(x))  # type: ignore[no-any-return]


_ladder = Ladder(OP, [Rung("triton", SWITCH, declines, triton), Rung("eager", None, None, eager)])


@torch.library.custom_op("scaffold::stem_convolution", mutates_args=())
def _forward_op(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    y = _new_output(x, weight, dtype)
    with launch_region(OP, on=x):
        from scaffold.kernels.convolution import stem_kernels

        launch = stem_plan.forward_launch(*_sizes(x, weight), dtype != torch.float32, _multiprocessors(x.device))
        grid = (launch.chunks, launch.strips, x.shape[0] * x.shape[2])
        stem_kernels.forward_kernel[grid](
            x, weight, y, *x.shape[2:], *weight.stride(), **_constants(weight, launch, dtype),
        )  # fmt: skip
    return y


@_forward_op.register_fake
def _(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return _new_output(x, weight, dtype)


@torch.library.custom_op("scaffold::stem_convolution_backward", mutates_args=())
def _backward_op(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the weight, in its dtype and order; of ``weight`` only these are used."""
    dy = dy.contiguous(memory_format=_LAST)
    planes = x.shape[0] * x.shape[2]
    gradient = torch.empty_like(weight)
    with launch_region(OP, on=x):
        from scaffold.kernels.convolution import stem_kernels

        launch = stem_plan.weight_gradient_launch(
            *_sizes(x, weight), dy.dtype != torch.float32, _multiprocessors(x.device)
        )
        constants = _constants(weight, launch, dy.dtype)
        patch = launch.k_tiles * launch.tile.k_tile
        partials = torch.empty((planes * launch.partials, 2 * weight.shape[0], patch), device=x.device)
        grid = (launch.chunks, launch.strips * launch.k_tiles, planes)
        stem_kernels.weight_gradient_kernel[grid](x, dy, partials, *x.shape[2:], launch.strips, **constants)
        stem_kernels.weight_gradient_sum_kernel[(-(-weight.numel() // _SUM_BLOCK),)](
            partials, gradient, *weight.stride(), C=x.shape[1], CO=weight.shape[0], K=patch,
            PARTIALS=partials.shape[0], ROWS=_SUM_ROWS, BLOCK=_SUM_BLOCK, num_warps=4,
        )  # fmt: skip
    return gradient


@_backward_op.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.needs_input_grad[0]:
        raise RuntimeError("the stem's kernels give no gradient of the image; stem_convolution() would have declined")
    return None, _backward_op(dy, *ctx.saved_tensors), None


_forward_op.register_autograd(_backward, setup_context=_setup_context)


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int, int]:
    samples, channels, depth, height, width = x.shape
    return samples * depth, height, width, channels, weight.shape[0]


def _new_output(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=_LAST)


def _constants(weight: Tensor, launch: stem_plan.Launch, dtype: torch.dtype) -> dict[str, Any]:
    import triton.language as tl

    return {
        "C": weight.shape[1], "CO": weight.shape[0], "PAIRS": launch.pairs, "K_TILE": launch.tile.k_tile,
        "K_TILES": launch.k_tiles, "TURNS": launch.turns, "DTYPE": getattr(tl, str(dtype).removeprefix("torch.")),
        "num_warps": launch.num_warps, "num_stages": launch.tile.num_stages,
    }  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    # The interpreter gets few: a program's beginning costs it much.
    return hardware.multiprocessors(device, interpreted=8)
