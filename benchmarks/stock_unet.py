"""The benchmark's U-Net and loss as one writes them from PyTorch's own modules: what ours is compared with.

The same layers, in the same order, with the same number of parameters. Under autocast its GroupNorm answers
in float32, its concatenation promotes, and its cross-entropy adds with atomics: that is stock behaviour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Double(nn.Sequential):
    """Twice: convolution 3^3, GroupNorm(8), ReLU."""

    def __init__(self, before: int, after: int, groups: int = 8) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1, bias=False), nn.GroupNorm(groups, after), nn.ReLU(inplace=True),
            nn.Conv3d(after, after, 3, padding=1, bias=False), nn.GroupNorm(groups, after), nn.ReLU(inplace=True),
        )  # fmt: skip


class StockUNet(nn.Module):
    """(N, 3, D, H, W) to logits (N, classes, D, H, W); extents divisible by ``2**layers``."""

    def __init__(self, layers: int, classes: int = 6, base: int = 64) -> None:
        super().__init__()
        widths = [base << level for level in range(layers + 1)]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose3d(w, w // 2, 2, stride=2) for w in reversed(widths[1:]))
        self.join = nn.ModuleList(Double(w, w // 2) for w in reversed(widths[1:]))
        self.head = nn.Conv3d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((skips.pop(), up(x)), dim=1))
        return self.head(x)  # type: ignore[no-any-return]


def stock_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return weighted cross-entropy + 1 - mean foreground soft Dice; labels int64."""
    logits = logits.float()
    truth = F.one_hot(labels, logits.shape[1]).movedim(-1, 1)[:, 1:]
    p = logits.softmax(1)[:, 1:]
    both, either = (p * truth).sum((2, 3, 4)), p.sum((2, 3, 4)) + truth.sum((2, 3, 4))
    return F.cross_entropy(logits, labels, weights) + 1 - ((2 * both + 1e-6) / (either + 1e-6)).mean()
