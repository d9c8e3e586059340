"""The sums as a PyTorch operator: which implementation serves a call, autograd, and the kernels' launches.

Forward: one pass over the logits leaves a row of partial sums for each program; ``torch.sum`` adds the rows in
an order that their number fixes. That second launch takes two microseconds. A last-arriving program could do
its work, but would need a counter in memory that survives the call, and ordered accesses to go with it.

Backward: one pass reads logits and labels again and recomputes the softmax. The bias gradient of the layer
that made the logits is left to that layer, whose own backward reads the gradient of the logits anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scaffold.kernels import hardware, refusals
from scaffold.kernels.ladder import Ladder, Rung, launch_region
from scaffold.kernels.segmentation import plan, reference

OP, SWITCH = "segmentation_sums", "SCAFFOLD_SEGMENTATION_TRITON"

_LOGITS = (torch.bfloat16, torch.float16, torch.float32)
_LABELS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)


def segmentation_sums(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the partial sums of the segmentation loss over the voxels at hand.

    Contract of every implementation: the softmax and all sums are float32 (float64 for float64 logits)
    with a fixed order of addition, so equal input gives equal bits; nothing waits for the device; the
    sums of the blocks of a sample add up to the sums of the sample, so that one all-reduce of this one
    tensor merges them. Differentiable in ``logits``, whose gradient has their dtype and memory format.

    Args:
        logits: (N, C, D, H, W), any floating dtype.
        labels: (N, D, H, W), any integer dtype, values in [0, C). A label outside counts in no sum.
        weights: (C,), the class weights of the cross-entropy.

    Returns:
        (N, 1 + C, 2). Row 0 holds the numerator sum(w[y] * -log p[y]) and the denominator sum(w[y]) of the
        cross-entropy; row 1 + c holds class c's 2 * sum(p * g) and sum(p) + sum(g), where g is 1 where
        the label is c (Milletari et al.: V-Net, 2016, without the squares).

    Raises:
        ValueError: the shapes do not fit together.
    """
    return _ladder(logits, labels, weights)


def declines(logits: Tensor, labels: Tensor, weights: Tensor) -> str | None:
    """Return why the Triton kernels do not take this call, or None if they do; arguments as above."""
    reason = refusals.no_triton(logits, labels, weights)
    if reason:
        return reason
    if logits.dim() != 5 or labels.shape != logits.shape[:1] + logits.shape[2:] or weights.shape != logits.shape[1:2]:
        return "shapes are not (N, C, D, H, W), (N, D, H, W) and (C,)"
    if not logits.device == labels.device == weights.device:
        return "the tensors are on several devices"
    if logits.dtype not in _LOGITS or labels.dtype not in _LABELS or not weights.is_floating_point():
        return f"logits of {logits.dtype}, labels of {labels.dtype} or weights of {weights.dtype} are not served"
    if weights.requires_grad:
        return "the weights want a gradient"
    last, plain = (logits.is_contiguous(memory_format=f) for f in (torch.channels_last_3d, torch.contiguous_format))
    if not ((last or plain) and labels.is_contiguous()):
        return "logits or labels are not dense"
    classes, voxels = logits.shape[1], labels[:1].numel()
    if not (2 <= classes <= plan.MOST_CLASSES and 1 <= voxels <= plan.MOST_VOXELS and logits.shape[0] <= 65535):
        return f"{classes} classes or {voxels} voxels are out of range"
    return None


def triton(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the sums by the Triton kernels; only for calls that ``declines`` does not refuse."""
    return _sums(logits, labels, weights.float().contiguous())  # type: ignore[no-any-return]


_ladder = Ladder(OP, [Rung("triton", SWITCH, declines, triton), Rung("eager", None, None, reference.eager)])


@torch.library.custom_op("scaffold::segmentation_sums", mutates_args=())
def _sums(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    samples, classes = logits.shape[:2]
    with launch_region(OP, on=logits):
        from scaffold.kernels.segmentation import kernels

        launch, constants = _launch(logits)
        rows = logits.new_empty((samples, launch.programs, 1 + classes, 2), dtype=torch.float32)
        kernels.sums_kernel[(launch.programs, samples)](
            logits, labels, weights, rows, labels[0].numel(), TURNS=launch.turns, **constants
        )
    return rows.sum(1)


@_sums.register_fake
def _(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return logits.new_empty((logits.shape[0], 1 + logits.shape[1], 2), dtype=torch.float32)


@torch.library.custom_op("scaffold::segmentation_sums_backward", mutates_args=())
def _logits_gradient(logits: Tensor, labels: Tensor, weights: Tensor, cotangent: Tensor) -> Tensor:
    gradient = torch.empty_like(logits)
    with launch_region(OP, on=logits):
        from scaffold.kernels.segmentation import kernels

        launch, constants = _launch(logits)
        kernels.gradient_kernel[(launch.tiles, len(logits))](
            logits, labels, weights, cotangent, gradient, labels[0].numel(), **constants
        )
    return gradient


@_logits_gradient.register_fake
def _(logits: Tensor, labels: Tensor, weights: Tensor, cotangent: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, None, None]:
    return _logits_gradient(*ctx.saved_tensors, cotangent.contiguous()), None, None


_sums.register_autograd(_backward, setup_context=_setup_context)


def _launch(logits: Tensor) -> tuple[plan.Plan, dict[str, Any]]:
    """Return the launch, and the compile-time arguments and options that both kernels share."""
    samples, classes = logits.shape[:2]
    launch = plan.plan(samples, classes, logits[0, 0].numel(), hardware.multiprocessors(logits.device))
    last = logits.is_contiguous(memory_format=torch.channels_last_3d)
    # Neighbouring bfloat16 values are read as one word.
    paired = last and logits.dtype == torch.bfloat16 and classes % 2 == 0 and logits.data_ptr() % 4 == 0
    return launch, {
        "CLASSES": classes, "WIDTH": launch.width, "LAST": last, "PAIRED": paired, "BLOCK": launch.block,
        "num_warps": launch.num_warps,
    }  # fmt: skip
