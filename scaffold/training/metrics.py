"""The Dice score, from sums that blocks of a sample can merge."""

from __future__ import annotations

import torch
from torch import Tensor

from scaffold.kernels.segmentation import one_hot

SMOOTHING = 1e-6
"""Makes the score of a class that is neither present nor predicted 1 instead of 0/0."""


def foreground_dice(sums: Tensor) -> Tensor:
    """Return the Dice score of each sample and foreground class, from its two sums.

    The background is left out: it fills 99 % of a volume, and would hide everything else.

    Args:
        sums: (N, C, 2): 2 * sum(p * g), and sum(p) + sum(g), over a sample's voxels.

    Returns:
        (N, C - 1), of classes 1 .. C-1.

    Raises:
        ValueError: there is no foreground class; every prediction would be perfect.
    """
    if sums.shape[1] < 2:
        raise ValueError(f"{sums.shape[1]} class: Dice needs the background and at least one foreground class")
    overlap, total = sums[:, 1:].unbind(-1)
    return (overlap + SMOOTHING) / (total + SMOOTHING)


def hard_dice_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the Dice sums of the predicted classes, which do not depend on the network's confidence.

    Args:
        logits: (N, C, D, H, W).
        labels: (N, D, H, W), any integer dtype, values in [0, C).

    Returns:
        (N, C, 2) for :func:`foreground_dice`, float32 (float64 for float64 logits).
    """
    predicted = one_hot(logits.argmax(dim=1), logits.shape[1])
    truth = one_hot(labels, logits.shape[1])
    overlap = 2 * _count(predicted & truth)
    total = _count(predicted) + _count(truth)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.stack((overlap, total), dim=-1).to(dtype)


def _count(where: Tensor) -> Tensor:
    return where.sum(dim=(2, 3, 4))
