"""What training minimises: weighted cross-entropy plus one minus the mean foreground soft Dice."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scaffold.kernels import segmentation_sums
from scaffold.training.metrics import foreground_dice


class Objective(NamedTuple):
    """The loss of a batch and its parts, on the device, attached to the graph.

    Attributes:
        loss: (), ``cross_entropy + 1 - mean(soft_dice)``.
        cross_entropy: (), class-weighted mean over all voxels of the batch.
        soft_dice: (N, C - 1), of each sample and foreground class.
    """

    loss: Tensor
    cross_entropy: Tensor
    soft_dice: Tensor


def objective(logits: Tensor, labels: Tensor, weights: Tensor) -> Objective:
    """Return the loss of a batch of whole samples.

    Args:
        logits: (N, C, D, H, W), any floating dtype; computed with in float32 (float64 for float64).
        labels: (N, D, H, W), any integer dtype, values in [0, C).
        weights: (C,), class weights of the cross-entropy.
    """
    with torch.autocast(logits.device.type, enabled=False):
        return from_sums(segmentation_sums(logits, labels, weights))


def from_sums(sums: Tensor) -> Objective:
    """Return the loss of a batch from its :func:`~scaffold.kernels.segmentation_sums` sums.

    The cross-entropy is normalised over the batch, not per sample: sum(w * -log p) / sum(w).

    Args:
        sums: (N, 1 + C, 2), summed over all blocks of each sample.
    """
    numerator, denominator = sums[:, 0].sum(0).unbind()
    cross_entropy = numerator / denominator.clamp_min(torch.finfo(torch.float32).eps)
    soft_dice = foreground_dice(sums[:, 1:])
    return Objective(cross_entropy + 1 - soft_dice.mean(), cross_entropy, soft_dice)
