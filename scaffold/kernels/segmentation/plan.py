"""How the kernels of the loss sums are launched: a pure function of the sizes and of the device's size."""

from __future__ import annotations

import functools
from dataclasses import dataclass

MOST_CLASSES = 64
"""A thread holds all classes of a voxel in registers."""

MOST_VOXELS = 2**30
"""Of a sample; the numbers of its tiles must stay within 32 bits."""

_PROGRAMS_PER_MULTIPROCESSOR = 8


@dataclass(frozen=True)
class Plan:
    """Launch of both kernels."""

    width: int
    """Classes, padded to a power of two."""
    block: int
    """Voxels of a tile."""
    num_warps: int
    programs: int
    """For each sample, of the forward kernel; it decides which voxels are added first, hence the bits."""
    turns: int
    """Tiles of such a program."""
    tiles: int
    """Of a sample: the programs of the backward kernel."""


@functools.cache
def plan(samples: int, classes: int, extent: int, multiprocessors: int) -> Plan:
    """Return the launch.

    Enough programs of the forward kernel to fill the device; but no more, since each leaves a row of partial
    sums for the second stage.

    Args:
        samples: N.
        classes: C.
        extent: voxels of a sample.
        multiprocessors: of the device.
    """
    width = max(2, 1 << (classes - 1).bit_length())
    block = 256 if width <= 8 else 128
    tiles = -(-extent // block)
    programs = max(1, min(tiles, _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // samples))
    return Plan(width, block, 4, programs, -(-tiles // programs), tiles)
