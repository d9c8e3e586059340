"""The benchmark's U-Net and loss as one writes them from PyTorch's own modules: what ours is compared with.

The same layers, in the same order, with the same number of parameters. Under autocast its GroupNorm answers
in float32, its concatenation promotes, and its cross-entropy adds with atomics: that is stock behaviour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scaffold.model.unet import UNet


class Double(nn.Sequential):
    """Twice: convolution 3^3, GroupNorm(8), ReLU."""

    def __init__(self, before: int, after: int, groups: int = 8) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1, bias=False), nn.GroupNorm(groups, after), nn.ReLU(inplace=True),
            nn.Conv3d(after, after, 3, padding=1, bias=False), nn.GroupNorm(groups, after), nn.ReLU(inplace=True),
        )  # fmt: skip


class StockUNet(nn.Module):
    """(N, 3, D, H, W) to logits (N, classes, D, H, W); extents divisible by ``2**layers``."""

    def __init__(self, layers: int, classes: int = 6, base: int = 64, groups: int = 8) -> None:
        super().__init__()
        widths = [base << level for level in range(layers + 1)]
        self.down = nn.ModuleList(Double(a, b, groups) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose3d(w, w // 2, 2, stride=2) for w in reversed(widths[1:]))
        self.join = nn.ModuleList(Double(w, w // 2, groups) for w in reversed(widths[1:]))
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


def copy_weights(ours: UNet, stock: StockUNet) -> None:
    """Give ``stock`` the parameters of ``ours``, which has as many, of the same shapes, under other names."""
    pairs: list[tuple[nn.Module, nn.Module]] = [*zip(ours.encoder, stock.down, strict=True), (ours.head, stock.head)]
    for level, up, join in zip(ours.decoder, stock.up, stock.join, strict=True):
        pairs += [(level.up, up), (level.block, join)]  # type: ignore[list-item]
    with torch.no_grad():
        for own, other in pairs:
            for source, target in zip(own.parameters(), other.parameters(), strict=True):
                if source.shape != target.shape:
                    raise ValueError(f"a parameter of shape {tuple(source.shape)} meets one of {tuple(target.shape)}")
                target.copy_(source)


def stock_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return weighted cross-entropy + 1 - mean foreground soft Dice; labels int64."""
    cross_entropy, soft_dice = stock_terms(logits, labels, weights)
    return cross_entropy + 1 - soft_dice.mean()


def stock_terms(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the loss is made of: cross-entropy (), and soft Dice (N, classes - 1); labels int64."""
    logits = logits.float()
    truth = F.one_hot(labels, logits.shape[1]).movedim(-1, 1)[:, 1:]
    p = logits.softmax(1)[:, 1:]
    both, either = (p * truth).sum((2, 3, 4)), p.sum((2, 3, 4)) + truth.sum((2, 3, 4))
    return F.cross_entropy(logits, labels, weights), (2 * both + 1e-6) / (either + 1e-6)
