"""How the kernels of the pointwise convolution are launched: a pure function of sizes and of the device's size."""

from __future__ import annotations

import functools
from dataclasses import dataclass

MOST_INPUTS = 256
MOST_OUTPUTS = 32
"""Beyond these channels the matrices no longer fit a program's registers, nor is memory the limit."""

MOST_ROWS = 2**31 - 2**20
"""Voxels; the numbers of their tiles and the ends of the last ones must stay within 32 bits."""

_PROGRAMS_PER_MULTIPROCESSOR = 2


@dataclass(frozen=True)
class Launch:
    """Launch of one kernel."""

    wide_in: int
    wide_out: int
    """Channels, padded to a power of two and to the least that a product takes."""
    block: int
    """Rows of a tile."""
    programs: int
    """Of the backward kernel, they decide which rows are added first, hence the bits of the gradients."""
    turns: int
    """Tiles of a program."""
    num_warps: int
    num_stages: int


@functools.cache
def plan(inputs: int, outputs: int, rows: int, itemsize: int, multiprocessors: int) -> Launch:
    """Return the launch of either kernel.

    A few programs a multiprocessor, each of which loads its next tiles while it works on one. float32 has no
    tensor-core product, and its tiles are smaller, so that a program's registers hold the operands.

    Args:
        inputs: C_in.
        outputs: C_out.
        rows: voxels of the batch.
        itemsize: bytes of an activation.
        multiprocessors: of the device.
    """
    wide_in, wide_out = (max(16, 1 << (channels - 1).bit_length()) for channels in (inputs, outputs))
    block = max(16, min(128, (8192 if itemsize == 2 else 2048) // wide_in))
    tiles = -(-rows // block)
    programs = min(tiles, _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors)
    return Launch(wide_in, wide_out, block, programs, -(-tiles // programs), 4, 3)
