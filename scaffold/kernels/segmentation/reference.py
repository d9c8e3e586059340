"""The sums in plain PyTorch: any device, any floating type; the other implementations are held to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def eager(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the sums; arguments, result and contract are those of ``segmentation_sums``."""
    if logits.dim() != 5 or labels.shape != logits.shape[:1] + logits.shape[2:] or weights.shape != logits.shape[1:2]:
        # They might broadcast, and give a loss that is none.
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)} and weights {tuple(weights.shape)} are not "
            "(N, C, D, H, W), (N, D, H, W) and (C,)"
        )
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
    names = torch.arange(classes, device=labels.device)
    # Not in the dtype of the labels, which may hold fewer names than there are classes.
    return labels[:, None].to(names.dtype) == names.view(1, -1, 1, 1, 1)


def _over_voxels(values: Tensor) -> Tensor:
    return values.sum(dim=(2, 3, 4))
