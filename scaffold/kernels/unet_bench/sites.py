"""Where in the network an operation stands: channels and extents, without building it."""

from __future__ import annotations

from typing import NamedTuple

from scaffold.kernels.bench import Sizes

GROUPS, CLASSES, IMAGE_CHANNELS = 8, 6, 3


class Network(NamedTuple):
    """A U-Net on a cube of one sample.

    Attributes:
        edge: voxels along an edge of the input.
        base: channels at full resolution; they double at each level.
        levels: of the encoder, the bottleneck included.
    """

    edge: int
    base: int
    levels: int

    def level(self, number: int) -> Level:
        """Return level ``number``, 0 being full resolution."""
        return Level(self.base << number, self.edge >> number)


class Level(NamedTuple):
    """What all convolutions of a level make.

    Attributes:
        channels: of each output.
        edge: voxels along an edge.
    """

    channels: int
    edge: int


class Norm(NamedTuple):
    """GroupNorm + ReLU, and perhaps the pooling after it."""

    channels: int
    edge: int
    pooled: bool

    def __str__(self) -> str:
        return f"{self.channels} @ {self.edge}^3" + (" + pool" if self.pooled else "")


class Convolution(NamedTuple):
    """A convolution 3^3."""

    in_channels: int
    out_channels: int
    edge: int

    def __str__(self) -> str:
        return f"{self.in_channels}->{self.out_channels} @ {self.edge}^3"


NETWORKS: dict[Sizes, list[Network]] = {
    "full": [Network(256, 64, 6), Network(128, 64, 5)],
    "small": [Network(8, 16, 2)],
}
"""Scale 8 and scale 7; their sites differ in all levels."""


def norms(network: Network) -> list[Norm]:
    """Return the sites of GroupNorm, the largest first."""
    levels = [network.level(number) for number in range(network.levels)]
    return [
        Norm(*level, pooled)
        for level in levels
        # The bottleneck's output is not pooled.
        for pooled in ((False, True) if level != levels[-1] else (False,))
    ]


def convolutions(network: Network) -> list[Convolution]:
    """Return the different convolutions 3^3 but the stem, the largest first."""
    found = []
    for number in range(network.levels):
        channels, edge = network.level(number)
        if number < network.levels - 1:
            found.append(Convolution(2 * channels, channels, edge))
        found.append(Convolution(channels, channels, edge))
        if number:
            found.append(Convolution(channels // 2, channels, edge))
    return found


def stem(network: Network) -> Convolution:
    """Return the first convolution."""
    return Convolution(IMAGE_CHANNELS, network.base, network.edge)


def steps_up(network: Network) -> list[Level]:
    """Return the levels to which the decoder steps up, the largest first."""
    return [network.level(number) for number in range(network.levels - 1)]


def parameter_shapes(network: Network) -> list[tuple[int, ...]]:
    """Return the shapes of all parameters, in the order of the levels."""

    def double(before: int, after: int) -> list[tuple[int, ...]]:
        norm = [(after,), (after,)]
        return [(after, before, 3, 3, 3), *norm, (after, after, 3, 3, 3), *norm]

    widths = [network.level(number).channels for number in range(network.levels)]
    shapes = [shape for pair in zip([IMAGE_CHANNELS, *widths[:-1]], widths, strict=True) for shape in double(*pair)]
    for width in widths[:-1]:
        shapes += [(2 * width, width, 2, 2, 2), (width,), *double(2 * width, width)]
    return [*shapes, (CLASSES, network.base, 1, 1, 1), (CLASSES,)]
