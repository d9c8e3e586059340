"""The 3-D U-Net of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scaffold.config import RunConfig
from scaffold.kernels import group_norm_relu_pointwise
from scaffold.model.blocks import DoubleBlock, EncoderBlock, GroupNormReLU, UpBlock


class UNet(nn.Module):
    """3-D U-Net (Cicek et al., 2016) with GroupNorm, of any depth.

    The encoder has a double block at full resolution and one after each of ``layers`` max-poolings by
    2^3; channels double at each level. The decoder mirrors it with transposed convolutions, and a 1^3
    convolution makes the logits. No dropout, no buffers, PyTorch's default initialisation from the
    global generator.

    Shape: (N, in_channels, D, H, W) to logits (N, out_channels, D, H, W), in channels-last order if the
    input is; any floating dtype.

    Args:
        in_channels: channels of the image.
        out_channels: classes, the background included.
        layers: number of poolings, >= 1.
        base_channels: channels at full resolution.
        groups: groups of each GroupNorm; divides ``base_channels``.
        activation_checkpointing: recompute each block's activations in the backward pass; results are
            the same bit for bit.

    Raises:
        ValueError: ``layers`` < 1, ``out_channels`` < 2, or ``groups`` does not divide ``base_channels``.
    """

    def __init__(
        self,
        in_channels: int = 3,
        *,
        out_channels: int,
        layers: int,
        base_channels: int = 64,
        groups: int = 8,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers = {layers}: a U-Net needs at least one")
        if out_channels < 2:
            raise ValueError(f"out_channels = {out_channels}: must be at least 2, the background and one category")
        widths = [base_channels << level for level in range(layers + 1)]
        self.in_channels, self.layers = in_channels, layers
        self.activation_checkpointing = activation_checkpointing
        self.encoder = nn.ModuleList(
            (DoubleBlock if width == widths[-1] else EncoderBlock)(before, width, groups)
            for before, width in zip([in_channels, *widths[:-1]], widths, strict=True)
        )
        self.decoder = nn.ModuleList(UpBlock(width, groups) for width in reversed(widths[1:]))
        self.head = Head(base_channels, out_channels, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of ``x``."""
        skips: list[Tensor] = []
        *levels, bottleneck = self.encoder
        for block in levels:
            skip, x = self._run(block, x)
            skips.append(skip)
        x = self._run(bottleneck, x)
        *blocks, last = cast(Iterable[UpBlock], self.decoder)
        for block in blocks:
            x = self._run(block, x, skips.pop())
        x = self._run(last.before_norm, x, skips.pop())
        return self.head(x, last.block.norm2)  # type: ignore[no-any-return]

    def _run(self, block: Callable[..., Any], *inputs: Tensor) -> Any:
        if self.activation_checkpointing and torch.is_grad_enabled():
            # There is no dropout whose random numbers the second pass would have to repeat.
            return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
        return block(*inputs)


class Head(nn.Conv3d):
    """The 1^3 convolution that makes the logits; parameters and their names are those of ``nn.Conv3d``.

    It takes over the last normalisation, in one operation that need not write what lies between the two.
    """

    bias: Tensor

    def forward(self, x: Tensor, norm: GroupNormReLU) -> Tensor:  # type: ignore[override]
        """Return the logits of ``norm(x)``."""
        return group_norm_relu_pointwise(
            x, norm.weight, norm.bias, self.weight, self.bias, norm.groups, norm.eps, site=self
        )


def build(config: RunConfig) -> UNet:
    """Return the freshly initialised network of ``config``, float32, in channels-last order, on the CPU."""
    network = UNet(
        out_channels=config.n_categories + 1,
        layers=config.unet_layers,
        base_channels=config.unet_base_channels,
        groups=config.group_norm_groups,
        activation_checkpointing=config.activation_checkpointing,
    )
    return network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload, no-any-return]
