"""How the stem's kernels are cut and launched: pure functions, importable without Triton or a GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass

TAPS = 9
"""Of depth and height; those of the width are inside a window."""


@dataclass(frozen=True)
class Tile:
    """What one kind of launch is made of."""

    pairs: int
    """Most pairs of voxels a row of a strip has."""
    k_tile: int
    """Patch elements that one product contracts (forward) or makes (weight gradient)."""
    num_warps: int
    num_stages: int
    programs_per_sm: int
    """That run at once."""
    overhead: int = 8
    """Time of a program outside its loop, in rows of a strip."""
    max_registers: int | None = None
    """A thread, where the compiler would take more and fewer programs would run at once; NVIDIA only."""


_FORWARD = {"half": Tile(64, 64, 4, 2, 3, max_registers=168), "float32": Tile(16, 64, 8, 1, 1)}
_WEIGHT_GRADIENT = {"half": Tile(32, 128, 8, 1, 2, max_registers=128), "float32": Tile(16, 128, 8, 1, 1)}
"""By the type in which products are formed: the fastest of 14 and 11 on an H200, at 128^3 and 256^3."""


@dataclass(frozen=True)
class Launch:
    """One launch."""

    tile: Tile
    pairs: int
    num_warps: int
    max_registers: int | None
    k_tiles: int
    strips: int
    turns: int
    """Rows of a strip that a program walks along."""
    chunks: int
    """Programs along the height of a strip."""

    @property
    def partials(self) -> int:
        """Return the programs of one plane that share a part of k."""
        return self.chunks * self.strips


def window(channels: int) -> int:
    """Return the values of a window: 4 voxels, and one more at either end if the channels are odd in number."""
    return 4 * channels + 2 * (channels % 2)


@functools.cache
def forward_launch(
    planes: int, height: int, width: int, channels: int, out_channels: int, half: bool, multiprocessors: int
) -> Launch:
    """Return the launch of the forward kernel.

    Args:
        planes: N D.
        height: H.
        width: W.
        channels: of the image, 1 to 4.
        out_channels: a power of 2 from 16 to 128.
        half: products of 16-bit operands, not of float32.
        multiprocessors: of the device.
    """
    tile = _FORWARD["half" if half else "float32"]
    return _launch(tile, planes, height, width, channels, out_channels, multiprocessors)


@functools.cache
def weight_gradient_launch(
    planes: int, height: int, width: int, channels: int, out_channels: int, half: bool, multiprocessors: int
) -> Launch:
    """Return the launch of the weight gradient's first kernel; arguments as of ``forward_launch``.

    It decides how the sum over the voxels is grouped, so it must depend on nothing else.
    """
    tile = _WEIGHT_GRADIENT["half" if half else "float32"]
    return _launch(tile, planes, height, width, channels, out_channels, multiprocessors)


def _launch(
    tile: Tile, planes: int, height: int, width: int, channels: int, out_channels: int, multiprocessors: int
) -> Launch:
    # A product has 16 rows at least.
    pairs = min(tile.pairs, max(16, 1 << ((width + 1) // 2 - 1).bit_length()))
    strips = -(-width // (2 * pairs))
    slots = multiprocessors * tile.programs_per_sm

    def cost(chunks: int) -> int:
        waves = -(-planes * strips * chunks // slots)
        return waves * (-(-height // chunks) + tile.overhead)

    chunks = min(range(1, height + 1), key=cost)
    turns = -(-height // chunks)
    # Products 256 wide would spill: with 4 warps, or with the registers that narrower ones are held to.
    wide = out_channels > 64
    num_warps, max_registers = (8, None) if wide else (tile.num_warps, tile.max_registers)
    k_tiles = -(-TAPS * window(channels) // tile.k_tile)
    return Launch(tile, pairs, num_warps, max_registers, k_tiles, strips, turns, -(-height // turns))
