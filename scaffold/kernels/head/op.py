"""GroupNorm, ReLU and the 1^3 convolution as one PyTorch operator: autograd, and the choice of the implementation.

Both directions are custom operators, opaque to ``torch.compile``. They are differentiable once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scaffold.kernels.autocast import compute_dtype
from scaffold.kernels.convolution import pointwise
from scaffold.kernels.group_norm import op as group_norm
from scaffold.kernels.group_norm.reference import Gather
from scaffold.kernels.head import launch
from scaffold.kernels.head.plan import MOST_CLASSES, MOST_LANES, MOST_VOXELS, padding
from scaffold.kernels.ladder import Ladder, Rung

SWITCH = "SCAFFOLD_HEAD_TRITON"


def group_norm_relu_pointwise(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5,
    partials: Gather | None = None, site: Any = None,
) -> Tensor:  # fmt: skip
    """Return ``pointwise_convolution(group_norm_relu(x))``, whose contracts hold.

    The normalised tensor is the largest of the network that only one operation reads. The Triton kernels neither
    write it nor its gradient: the forward pass reads ``x`` twice, the backward pass reads ``x`` and the gradient of
    the logits twice and writes the gradient of ``x``. The normalised values are rounded to the dtype of ``x`` before
    they are multiplied, as if they had been written, so that the logits are those of the two operations to the order
    of addition; their gradient, which the two operations round to that dtype between them, stays float32. In turn the
    sums over voxels of the backward pass take x - mean rounded to that dtype, each element once. A NaN or an infinity
    in the logits' gradient reaches the sums of all channels, those that the ReLU stops in its voxel too.

    Args:
        x: (N, C, D, H, W), any floating dtype.
        norm_weight: (C,), of the normalisation.
        norm_bias: (C,), of the normalisation.
        weight: (classes, C, 1, 1, 1), of the convolution.
        bias: (classes,), of the convolution.
        groups: divides C.
        eps: added to the variance.
        partials: as for ``group_norm_relu``; such calls are served by the two operations.
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Returns:
        (N, classes, D, H, W).

    Raises:
        RuntimeError: ``groups`` does not divide C, or the shapes do not fit.
    """
    return _ladder(x, norm_weight, norm_bias, weight, bias, groups, eps, partials, site, site=site)


def separate(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5,
    partials: Gather | None = None, site: Any = None,
) -> Tensor:  # fmt: skip
    """Return the same by the two operations, each of which goes down its own ladder; arguments as above."""
    y = group_norm.group_norm_relu(x, norm_weight, norm_bias, groups, eps, partials, site=site)
    return pointwise.pointwise_convolution(y, weight, bias, site=site)


def declines(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5,
    partials: Gather | None = None, site: Any = None,
) -> str | None:  # fmt: skip
    """Return why the Triton kernels do not take this call, or None if they do; arguments as above."""
    if partials is not None:
        return "statistics are gathered between the normalisation's two passes"
    # Between the two, y is what x is: dtype, shape, layout and device.
    reason = group_norm.declines(x, norm_weight, norm_bias, groups, eps) or pointwise.declines(x, weight, bias)
    if reason:
        return reason
    if compute_dtype(x) != x.dtype:
        return f"autocast would round {x.dtype} between normalisation and convolution"
    padded, block_groups = padding(x.shape[1], groups)
    if padded * block_groups > MOST_LANES or weight.shape[0] > MOST_CLASSES:
        return f"{groups} groups of {padded} channels or {weight.shape[0]} classes are too many"
    if x.shape[2:].numel() > MOST_VOXELS:
        return f"{x.shape[2:].numel()} voxels are out of range"
    return None


def triton(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5,
    partials: Gather | None = None, site: Any = None,
) -> Tensor:  # fmt: skip
    """Return the same by the Triton kernels; only for calls that ``declines`` does not refuse."""
    parameters = (norm_weight, norm_bias, weight.flatten(1), bias)
    logits: Tensor = _forward_op(x, *(parameter.contiguous() for parameter in parameters), groups, eps)[0]
    return logits


_ladder = Ladder(launch.OP, [Rung("triton", SWITCH, declines, triton), Rung("separate", None, None, separate)])


@torch.library.custom_op("scaffold::group_norm_relu_pointwise", mutates_args=())
def _forward_op(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the logits and the statistics (N, groups, 3)."""
    return launch.logits(x, norm_weight, norm_bias, weight, bias, groups, eps)


@_forward_op.register_fake
def _(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    logits = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    return logits, x.new_empty((x.shape[0], groups, 3), dtype=torch.float32)


@torch.library.custom_op("scaffold::group_norm_relu_pointwise_backward", mutates_args=())
def _backward_op(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, statistics: Tensor, dlogits: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and those of the parameters in one row: an operator may not return overlapping ones."""
    return launch.gradients(x, norm_weight, norm_bias, weight, statistics, dlogits, groups)


@_backward_op.register_fake
def _(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, statistics: Tensor, dlogits: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    width = 2 * norm_weight.numel() + weight.numel() + len(weight)
    return torch.empty_like(x, memory_format=torch.channels_last_3d), x.new_empty(width, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, norm_weight, norm_bias, weight, bias, ctx.groups, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, norm_weight, norm_bias, weight, output[1])
    ctx.dtype_of_bias = bias.dtype


def _backward(ctx: Any, dlogits: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dlogits is None:
        return (None,) * 7
    x, norm_weight, norm_bias, weight, statistics = ctx.saved_tensors
    dlogits = dlogits.contiguous(memory_format=torch.channels_last_3d)
    dx, row = _backward_op(x, norm_weight, norm_bias, weight, statistics, dlogits, ctx.groups)
    of_norm_weight, of_norm_bias, of_weight, of_bias = row.split(
        (norm_weight.numel(), norm_bias.numel(), weight.numel(), len(weight))
    )
    return (
        dx, of_norm_weight.to(norm_weight.dtype), of_norm_bias.to(norm_bias.dtype),
        of_weight.view_as(weight).to(weight.dtype), of_bias.to(ctx.dtype_of_bias), None, None,
    )  # fmt: skip


_forward_op.register_autograd(_backward, setup_context=_setup_context)
