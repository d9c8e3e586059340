"""The parts of the U-Net: normalised activations, double convolutions, the step up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaffold.kernels import (
    convolution3,
    group_norm_relu,
    group_norm_relu_pool,
    stem_convolution,
    upsample_concatenate,
)
from scaffold.kernels.convolution.stem import MAX_IN_CHANNELS


class GroupNormReLU(nn.Module):
    """GroupNorm with an affine map, then ReLU; the output keeps the input's dtype and memory format.

    Shape: (N, channels, D, H, W) to the same.
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"groups = {groups} must divide the {channels} channels")
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and rectify ``x``."""
        return group_norm_relu(x, self.weight, self.bias, self.groups, self.eps, site=self)


class GroupNormReLUPool(GroupNormReLU):
    """GroupNorm, ReLU, and the maximum over 2^3 voxels of that, both returned.

    Shape: (N, channels, D, H, W) to the same and (N, channels, D // 2, H // 2, W // 2).
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Normalise, rectify and pool ``x``."""
        return group_norm_relu_pool(x, self.weight, self.bias, self.groups, self.eps, site=self)


class Convolution3(nn.Conv3d):
    """Convolution 3^3 with padding 1 and no bias; the stem's form if the input has few channels.

    Shape: (N, in_channels, D, H, W) to (N, out_channels, D, H, W).
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``x``."""
        if self.in_channels <= MAX_IN_CHANNELS:
            return stem_convolution(x, self.weight, site=self)
        return convolution3(x, self.weight)


class DoubleBlock(nn.Module):
    """Twice: convolution 3^3 with padding 1 and no bias, GroupNorm, ReLU.

    Shape: (N, in_channels, D, H, W) to (N, out_channels, D, H, W).
    """

    def __init__(self, in_channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.conv1 = Convolution3(in_channels, out_channels)
        self.norm1 = GroupNormReLU(groups, out_channels)
        self.conv2 = Convolution3(out_channels, out_channels)
        self.norm2 = GroupNormReLU(groups, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to ``x``."""
        return self.norm2(self.before_norm(x))  # type: ignore[no-any-return]

    def before_norm(self, x: Tensor) -> Tensor:
        """Apply all of the block but its last normalisation and ReLU, ``norm2``."""
        return self.conv2(self.norm1(self.conv1(x)))  # type: ignore[no-any-return]


class EncoderBlock(DoubleBlock):
    """A double block that also pools.

    Shape: (N, in_channels, D, H, W) to (N, out_channels, D, H, W), the skip, and to half its extents, what the
    next level reads.
    """

    def __init__(self, in_channels: int, out_channels: int, groups: int) -> None:
        super().__init__(in_channels, out_channels, groups)
        self.norm2 = GroupNormReLUPool(groups, out_channels)


class UpsampleConcatenate(nn.ConvTranspose3d):
    """Transposed convolution 2^3 with stride 2, joined to the skip; parameters are those of ``nn.ConvTranspose3d``.

    Shape: (N, in_channels, d, h, w) and the skip (N, C, D, H, W) to (N, C + out_channels, D, H, W).
    """

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
        """Bring ``x`` to the resolution of ``skip``; return the skip and it along the channels."""
        return upsample_concatenate(x, self.weight, self.bias, skip, site=self)


class UpBlock(nn.Module):
    """One level up: transposed convolution, concatenation with the skip, double convolution.

    Shape: (N, in_channels, d, h, w) and the skip (N, in_channels/2, D, H, W) to the skip's shape.
    """

    def __init__(self, in_channels: int, groups: int) -> None:
        super().__init__()
        self.up = UpsampleConcatenate(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.block = DoubleBlock(in_channels, in_channels // 2, groups)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Bring ``x`` to the resolution of ``skip`` and join the two."""
        return self.block(self.up(x, skip))  # type: ignore[no-any-return]

    def before_norm(self, x: Tensor, skip: Tensor) -> Tensor:
        """Do the same but for the last normalisation and ReLU, ``block.norm2``."""
        return self.block.before_norm(self.up(x, skip))
