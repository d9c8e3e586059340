"""The U-Net's step up: transposed convolution and concatenation with the skip, in one operation.

The concatenation is the largest tensor of a level. Here the transposed convolution writes its half in place, the
skip is copied beside it in the same launch, and the backward reads the upsampled half's gradient where it lies and
hands the skip's on as a view.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels.autocast import compute_dtype
from scaffold.kernels.convolution import upsample_launch
from scaffold.kernels.ladder import Ladder, Rung, launch_region
from scaffold.kernels.refusals import no_triton, transforming

OP, SWITCH = "upsample_concatenate", "SCAFFOLD_UPSAMPLE_TRITON"

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_CHANNEL_MULTIPLE = 16


def upsample_concatenate(x: Tensor, weight: Tensor, bias: Tensor | None, skip: Tensor, site: Any = None) -> Tensor:
    """Return ``[skip, up(x)]`` along the channels, up being ``conv_transpose3d`` with kernel 2 and stride 2.

    Contract of every implementation: sums are float32 (float64 for float64) and float32 products are IEEE;
    far planes of ``skip`` that ``up(x)`` lacks are zeros in the second half; under autocast all is cast to its
    dtype first; the result is in channels-last order if ``skip`` or ``x`` is, though inside a functorch transform
    in any. The Triton form rounds a voxel once, after the bias, gives the same bits in every run, and its second
    derivative raises.

    Args:
        x: (N, 2 C, d, h, w).
        weight: (2 C, C, 2, 2, 2), best in channels-last order, which the kernels read.
        bias: (C,), or None.
        skip: (N, C, D, H, W), each extent at least twice that of ``x``.
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Returns:
        (N, 2 C, D, H, W).

    Raises:
        ValueError: ``skip`` fits neither ``x`` nor ``weight``.
        RuntimeError: ``x``, ``weight`` and ``bias`` disagree.
    """
    return _ladder(x, weight, bias, skip, site=site)


def eager(x: Tensor, weight: Tensor, bias: Tensor | None, skip: Tensor) -> Tensor:
    """Compute ``upsample_concatenate`` with PyTorch's own operators."""
    upsampled = F.conv_transpose3d(x, weight, bias, stride=2)
    if skip.shape[:2] != upsampled.shape[:2]:
        raise ValueError(f"skip {tuple(skip.shape)} has not the samples and channels of up(x) {tuple(upsampled.shape)}")
    return concatenate(skip, pad_to(upsampled, skip))


def triton(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """Compute ``upsample_concatenate`` with the kernels; only for calls that ``declines`` does not refuse."""
    dtype = compute_dtype(x)
    weight = weight.to(dtype=dtype, memory_format=torch.channels_last_3d)
    return _forward_op(x.to(dtype), weight, bias.to(dtype), skip.to(dtype))  # type: ignore[no-any-return]


def declines(x: Tensor, weight: Tensor, bias: Tensor | None, skip: Tensor) -> str | None:
    """Say why the Triton form does not take a call; None means that it does. Never raises."""
    if bias is None:
        return "no bias"
    tensors = (x, weight, bias, skip)
    reason = no_triton(*tensors)
    if reason:
        return reason
    if len({tensor.device for tensor in tensors}) > 1:
        return "tensors on several devices"
    if any(tensor.layout != torch.strided for tensor in tensors):
        return "a sparse tensor"
    if x.dim() != 5 or skip.dim() != 5 or x.stride(1) != 1 or skip.stride(1) != 1:
        return "not in channels-last order"
    if compute_dtype(x) not in _DTYPES or len({compute_dtype(tensor) for tensor in tensors}) > 1:
        return "dtypes that differ, or others than bfloat16, float16 and float32"
    return _declines_sizes(tuple(x.shape), tuple(weight.shape), tuple(bias.shape), tuple(skip.shape))


_ladder = Ladder(OP, [Rung("triton", SWITCH, declines, triton), Rung("eager", None, None, eager)])


def pad_to(x: Tensor, target: Tensor) -> Tensor:
    """Return ``x`` with zeros appended at the far sides until it has the extents of ``target``.

    Raises:
        ValueError: ``target`` is smaller.
    """
    missing = [goal - extent for goal, extent in zip(target.shape[2:], x.shape[2:], strict=True)]
    if min(missing) < 0:
        # A negative padding would crop.
        raise ValueError(f"up(x) {tuple(x.shape)} does not fit into skip {tuple(target.shape)}")
    if not any(missing):
        return x
    depth, height, width = missing
    return F.pad(x, (0, width, 0, height, 0, depth))


def concatenate(skip: Tensor, upsampled: Tensor) -> Tensor:
    """Return ``[skip, upsampled]`` along the channels, in channels-last order if either half is.

    Under autocast both halves are cast to the type that the consuming convolution will read. That gives
    the same bits as promoting them, and halves the traffic where one half is float32.
    """
    skip, upsampled = skip.to(compute_dtype(skip)), upsampled.to(compute_dtype(upsampled))
    last = torch.channels_last_3d
    if transforming():
        return torch.cat((skip, upsampled), dim=1)
    if skip.is_contiguous(memory_format=last) or upsampled.is_contiguous(memory_format=last):
        skip, upsampled = skip.contiguous(memory_format=last), upsampled.contiguous(memory_format=last)
    return torch.cat((skip, upsampled), dim=1)


def _declines_sizes(
    x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...], skip: tuple[int, ...]
) -> str | None:
    batch, channels, *fine = skip
    if x[:2] != (batch, 2 * channels) or weight != (2 * channels, channels, 2, 2, 2) or bias != (channels,):
        return "shapes that do not fit together"
    if not all(2 * coarse <= extent <= 2 * coarse + 1 for coarse, extent in zip(x[2:], fine, strict=True)):
        return "a skip of other extents than twice those of x, or one more"
    if channels % _CHANNEL_MULTIPLE:
        return f"channels that are no multiple of {_CHANNEL_MULTIPLE}"
    return "an empty tensor" if 0 in x else None


def _packed(weight: Tensor) -> Tensor:
    """Return the weight as a row-major (2 C, 8 taps, C)."""
    return weight.contiguous(memory_format=torch.channels_last_3d)


@torch.library.custom_op("scaffold::upsample_concatenate", mutates_args=())
def _forward_op(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    with launch_region(OP, on=x):
        return upsample_launch.forward(x, _packed(weight), bias.contiguous(), skip)


@_forward_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    N, C, D, H, W = skip.shape
    return upsample_launch.empty_channels_last((N, 2 * C, D, H, W), x)


@torch.library.custom_op("scaffold::upsample_concatenate_backward", mutates_args=())
def _backward_op(
    grad: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the weight and of the bias; empty where not needed."""
    with launch_region(OP, on=x):
        dx = upsample_launch.input_gradient(grad, _packed(weight), x) if needs_x else x.new_empty(0)
        if needs_weight:
            return dx, *upsample_launch.weight_gradient(x, grad)
        return dx, x.new_empty(0), x.new_empty(0)


@_backward_op.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool) -> tuple[Tensor, Tensor, Tensor]:
    dx = upsample_launch.empty_channels_last(tuple(x.shape), x) if needs_x else x.new_empty(0)
    if needs_weight:
        return dx, upsample_launch.empty_channels_last(tuple(weight.shape), x), x.new_empty(weight.shape[1])
    return dx, x.new_empty(0), x.new_empty(0)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _, skip = inputs
    ctx.save_for_backward(x, weight)
    ctx.channels = skip.shape[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, needs_skip = ctx.needs_input_grad
    dx = dw = db = None
    if needs_x or needs_weight or needs_bias:
        if grad.stride(1) != 1:
            grad = grad.contiguous(memory_format=torch.channels_last_3d)
        dx, dw, db = _backward_op(grad, x, weight, needs_x, needs_weight or needs_bias)
    return (
        dx if needs_x else None,
        dw if needs_weight else None,
        db if needs_bias else None,
        grad[:, : ctx.channels] if needs_skip else None,
    )


_forward_op.register_autograd(_backward, setup_context=_setup_context)
