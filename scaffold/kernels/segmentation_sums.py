"""The sums over voxels that cross-entropy and soft Dice are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def segmentation_sums(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the partial sums of the segmentation loss over the voxels at hand.

    Contract of every implementation: the softmax and all sums are float32 (float64 for float64 logits)
    with a fixed order of addition, so equal input gives equal bits; nothing waits for the device; the
    sums of the blocks of a sample add up to the sums of the sample, so that one all-reduce of this one
    tensor merges them. Differentiable in ``logits``.

    Args:
        logits: (N, C, D, H, W), any floating dtype.
        labels: (N, D, H, W), any integer dtype, values in [0, C). A label outside counts in no sum.
        weights: (C,), the class weights of the cross-entropy.

    Returns:
        (N, 1 + C, 2). Row 0 holds the numerator sum(w[y] * -log p[y]) and the denominator sum(w[y]) of the
        cross-entropy; row 1 + c holds class c's 2 * sum(p * g) and sum(p) + sum(g), where g is 1 where
        the label is c (Milletari et al.: V-Net, 2016, without the squares).
    """
    log_p = F.log_softmax(logits, dim=1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    truth = one_hot(labels, logits.shape[1])
    p = log_p.exp()
    # Per voxel first, then summed: the fused sum of nll_loss adds with atomics on CUDA, in any order.
    negative_log = -_over_voxels(log_p.where(truth, 0))
    count = _over_voxels(truth).to(log_p.dtype)
    weights = weights.to(log_p.dtype)
    cross_entropy = torch.stack(((weights * negative_log).sum(1), (weights * count).sum(1)), dim=-1)
    dice = torch.stack((2 * _over_voxels(p.where(truth, 0)), _over_voxels(p) + count), dim=-1)
    return torch.cat((cross_entropy[:, None], dice), dim=1)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return where each class is: (N, D, H, W) labels to (N, classes, D, H, W) bool."""
    names = torch.arange(classes, device=labels.device).to(labels.dtype)
    return labels[:, None] == names.view(1, -1, 1, 1, 1)


def _over_voxels(values: Tensor) -> Tensor:
    return values.sum(dim=(2, 3, 4))
