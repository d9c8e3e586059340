"""The 1^3 convolution with few outputs, which makes the logits: limited by memory alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import hardware, refusals
from scaffold.kernels.convolution import pointwise_plan
from scaffold.kernels.ladder import Ladder, Rung, launch_region

OP, SWITCH = "pointwise_convolution", "SCAFFOLD_POINTWISE_TRITON"

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def pointwise_convolution(x: Tensor, weight: Tensor, bias: Tensor, site: Any = None) -> Tensor:
    """Return the convolution of ``x`` with a 1^3 kernel.

    Contract of every implementation: under autocast ``x`` and the parameters are rounded to its dtype, as by
    PyTorch's own convolution; sums are float32 (float64 for float64), with a fixed order of addition; output
    and input gradient keep the memory format of ``x``, the latter its dtype; the parameters' gradients have
    the parameters' dtype. The Triton kernels round those once; PyTorch's convolution rounds them to the
    autocast dtype on the way.

    Args:
        x: (N, C_in, D, H, W), any floating dtype.
        weight: (C_out, C_in, 1, 1, 1).
        bias: (C_out,).
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Returns:
        (N, C_out, D, H, W).
    """
    return _ladder(x, weight, bias, site=site)


def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the convolution by PyTorch's own; arguments and contract as above."""
    return F.conv3d(x, weight, bias)


def declines(x: Tensor, weight: Tensor, bias: Tensor) -> str | None:
    """Return why the Triton kernels do not take this call, or None if they do; arguments as above."""
    reason = refusals.no_triton(x, weight, bias)
    if reason:
        return reason
    if x.dim() != 5 or weight.shape != (*bias.shape, x.shape[1], 1, 1, 1):
        return "shapes are not (N, C_in, D, H, W), (C_out, C_in, 1, 1, 1) and (C_out,)"
    if not x.device == weight.device == bias.device:
        return "the tensors are on several devices"
    dtype = compute_dtype(x)
    if dtype not in _DTYPES or any(parameter.dtype not in (torch.float32, dtype) for parameter in (weight, bias)):
        return f"activations of {dtype} or parameters of {weight.dtype} and {bias.dtype} are not served"
    if weight.dtype != bias.dtype or (weight.dtype != dtype and not torch.is_autocast_enabled(x.device.type)):
        return "dtypes differ"
    if dtype == torch.bfloat16 and not x.is_cuda:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if not x.is_contiguous(memory_format=torch.channels_last_3d):
        return "the input is not in channels-last order"
    outputs, inputs = weight.shape[:2]
    if inputs > pointwise_plan.MOST_INPUTS or outputs > pointwise_plan.MOST_OUTPUTS:
        return f"{inputs} to {outputs} channels are too many"
    if not 0 < x.numel() // inputs <= pointwise_plan.MOST_ROWS:
        return f"{x.numel() // inputs} voxels are out of range"
    return None


def triton(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the convolution by the Triton kernels; only for calls that ``declines`` does not refuse."""
    # The kernels round the parameters themselves, so that their gradients need not pass the narrow type.
    out: Tensor = _convolution(x.to(compute_dtype(x)), weight.flatten(1).contiguous(), bias.contiguous())
    return out


_ladder = Ladder(OP, [Rung("triton", SWITCH, declines, triton), Rung("eager", None, None, eager)])


@torch.library.custom_op("scaffold::pointwise_convolution", mutates_args=())
def _convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = _empty_output(x, weight)
    with launch_region(OP, on=x):
        from scaffold.kernels.convolution import pointwise_kernels

        programs, rows, constants = _launch(x, weight)
        pointwise_kernels.forward_kernel[(programs,)](x, weight, bias, out, rows, **constants)
    return out


@_convolution.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _empty_output(x, weight)


@torch.library.custom_op("scaffold::pointwise_convolution_backward", mutates_args=())
def _gradients(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of weight and bias in one row (two tensors would be two sums, or overlap)."""
    dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
    with launch_region(OP, on=x):
        from scaffold.kernels.convolution import pointwise_kernels

        programs, rows, constants = _launch(x, weight)
        partials = x.new_empty((programs, weight.numel() + len(weight)), dtype=torch.float32)
        pointwise_kernels.backward_kernel[(programs,)](x, gradient, weight, dx, partials, rows, **constants)
    return dx, partials.sum(0).to(weight.dtype)


@_gradients.register_fake
def _(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
    return dx, weight.new_empty((weight.numel() + len(weight),))


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    dx, parameters = _gradients(x, weight, gradient.contiguous(memory_format=torch.channels_last_3d))
    return dx, parameters[: weight.numel()].view_as(weight), parameters[weight.numel() :]


_convolution.register_autograd(_backward, setup_context=_setup_context)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to which the convolution rounds its operands."""
    device = x.device.type
    cast = x.dtype != torch.float64 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if cast else x.dtype


def _empty_output(x: Tensor, weight: Tensor) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)


def _launch(x: Tensor, weight: Tensor) -> tuple[int, int, dict[str, Any]]:
    """Return the programs, the rows, and the compile-time arguments and options that both kernels share."""
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    launch = pointwise_plan.plan(inputs, outputs, rows, x.itemsize, hardware.multiprocessors(x.device))
    return launch.programs, rows, {
        "C_IN": inputs, "C_OUT": outputs, "WIDE_IN": launch.wide_in, "WIDE_OUT": launch.wide_out,
        "BLOCK": launch.block, "TURNS": launch.turns,
        "num_warps": launch.num_warps, "num_stages": launch.num_stages,
    }  # fmt: skip
