"""How the kernels are launched: pure functions of shape and device, importable without Triton or a GPU.

The programs of the kernel that sums gradients fix the order of additions, hence the bits; so nothing is ever chosen
by timing at run time.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

from scaffold.kernels.group_norm.plan import Device, Plan, ceil_power_of_2

Pass = Literal["logits", "gradient_sums", "input_gradient"]

MOST_LANES = 128
MOST_CLASSES = 32
"""Beyond these channels, padding included, and classes the tiles no longer fit a program's registers."""

MOST_VOXELS = 2**31 - 2**20
"""Of a sample; the ends of the last tiles must stay within 32 bits."""

_LEAST = 16
"""Rows and columns that a product takes at least."""


class Problem(NamedTuple):
    """What the kernels work on."""

    channels: int
    groups: int
    classes: int
    voxels: int
    """Of a sample."""
    samples: int
    itemsize: int
    """Bytes of an element of x."""


class Choice(NamedTuple):
    """What is tuned."""

    block: int
    """Voxels of a tile of 64 channels."""
    warps: int
    stages: int
    """Tiles that a program loads ahead, and the one it works on."""
    programs: int
    """Programs for each multiprocessor."""


_CHOICES: dict[Pass, Choice] = {
    "logits": Choice(128, 4, 4, 3),
    "gradient_sums": Choice(64, 4, 4, 4),
    "input_gradient": Choice(128, 8, 4, 1),
}
"""For any shape and device, in two-byte types: the fastest of eight at 64 channels of 256^3 on an H200, in bfloat16."""


@functools.lru_cache(maxsize=1024)
def plan(kernel: Pass, problem: Problem, device: Device) -> Plan:
    """Return the launch of a pass."""
    return layout(problem, device, _CHOICES[kernel])


def layout(problem: Problem, device: Device, choice: Choice) -> Plan:
    """Deal the tiles of a problem out to programs."""
    channels, groups, classes, voxels, samples, itemsize = problem
    padded, block_groups = padding(channels, groups)
    lanes, wide_out = padded * block_groups, max(_LEAST, ceil_power_of_2(classes))
    # float32 has no tensor-core product; with small tiles and more threads its operands fit into registers.
    wide = itemsize == 4
    block = min(16 * _LEAST // wide_out * 128 // lanes, 32) if wide else choice.block * 64 // max(lanes, 32)
    block = max(_LEAST, min(block, ceil_power_of_2(voxels)))
    tiles = -(-voxels // block)
    programs = min(tiles, max(1, choice.programs * device.multiprocessors // samples))
    turns = -(-tiles // programs)
    constants = {
        "C": channels, "GROUPS": groups, "CLASSES": classes, "VOXELS": voxels, "BLOCK_GROUPS": block_groups,
        "PADDED": padded, "WIDE_OUT": wide_out, "BLOCK": block, "PROGRAMS": programs,
        "TURNS": turns, "STAGES": choice.stages,
    }  # fmt: skip
    return Plan(tuple(constants.items()), 8 if wide else choice.warps, programs, 1)


def padding(channels: int, groups: int) -> tuple[int, int]:
    """Return the channels of a group and the groups of a tile, both padded to powers of two."""
    padded = ceil_power_of_2(channels // groups)
    return padded, max(ceil_power_of_2(groups), _LEAST // padded)
