"""How large the U-Net is, without building it (and without importing torch)."""

from __future__ import annotations

from scaffold.config import RunConfig

_STATE_TENSORS = {"ADAM": 3, "SGD": 1, "RMSProp": 2}
"""Tensors of the parameters' size in a checkpoint: the parameters and the optimizer's moments."""


def parameters(config: RunConfig) -> int:
    """Return the number of parameters of the network that a run trains."""
    return parameter_count(config.unet_layers, config.unet_base_channels, config.n_categories + 1)


def training_bytes(config: RunConfig) -> int:
    """Return the bytes that one training leaves: two checkpoints (last and best) and the model."""
    return 4 * parameters(config) * (2 * _STATE_TENSORS[config.optimizer] + 1)


def parameter_count(layers: int, base_channels: int, out_channels: int, in_channels: int = 3) -> int:
    """Return the number of parameters of :class:`scaffold.model.unet.UNet`.

    Level l >= 1 with o = base * 2^l channels has 40.5 o^2 + 4 o parameters in its encoder block,
    4 o^2 + o/2 in its transposed convolution and 20.25 o^2 + 2 o in its decoder block, in all
    64.75 o^2 + 6.5 o. For base 64 this is the closed form of LLNL's network.
    """
    b = base_channels
    stem = 27 * in_channels * b + 27 * b * b + 4 * b
    squares = 4 * b * b * ((1 << 2 * layers) - 1) // 3
    widths = 2 * b * ((1 << layers) - 1)
    head = (b + 1) * out_channels
    # In quarters, so that the sum stays an integer.
    return stem + (259 * squares + 26 * widths) // 4 + head
