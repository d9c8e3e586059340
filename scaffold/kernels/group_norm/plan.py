"""How the kernels are launched: pure functions of shape and device, importable without Triton or a GPU.

The number of programs of the two reducing passes fixes the order of additions, hence the bits; so nothing
is ever chosen by timing at run time.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

Pass = Literal["statistics", "normalise", "gradient_sums", "input_gradient"]
Merge = Literal["forward_coefficients", "backward_coefficients"]

MOST_GROUP_CHANNELS = 8192
"""Channels of a group up to which a tile of one voxel fits into the registers of a program."""

WINDOW = 8
"""Voxels of a pooling window of 2^3."""

_MERGED_AT_ONCE = 512
"""Partial results that a program merges at a time: a few registers a thread."""

_MERGED_BY_ONE = 1024
"""The same where a program merges those of one group and has nothing else to keep."""

_MERGED_FIRST = 2**25
"""Elements of a tensor from which on partial results are merged by a launch of their own.

Below, each program of the pass that needs them merges them, which costs less than a launch. Above, there are
too many programs for that: one for each tile, since these keep the memory busier than few that loop.
"""

_MOST_PROGRAMS = 2**20
"""Programs for each multiprocessor that make one for each tile."""

_NOMINAL_PLANES = 64
_SUMMED_COLUMNS = 16


class Problem(NamedTuple):
    """What a pass works on."""

    channels: int
    groups: int
    depth: int
    height: int
    width: int
    samples: int
    itemsize: int
    """Bytes of an element of x."""
    pooled: bool
    """Tiles are pooling windows."""


class Device(NamedTuple):
    """What a plan needs to know of a GPU."""

    multiprocessors: int
    lanes: int
    """Threads of a warp."""
    tuned: bool = False
    """Choices were measured on it (:func:`scaffold.kernels.hardware.is_tuned`)."""


class Choice(NamedTuple):
    """What is tuned."""

    block_channels: int
    """Channels of a program, at least one group."""
    unroll: int
    """16-byte accesses of a thread to each tensor that are in flight at once."""
    warps: int
    programs: int
    """Programs for each multiprocessor."""


class Plan(NamedTuple):
    """One launch."""

    constants: tuple[tuple[str, Any], ...]
    """Compile-time arguments of the kernel."""
    warps: int
    programs: int
    """Along the voxels: the number of partial results of a reducing pass."""
    blocks: int
    """Of channels."""


class _Tuned(NamedTuple):
    """The fastest choices of a pass in bfloat16 on an H200, of about 12 tried at each site of scales 7 and 8."""

    largest: Choice
    """From ``_MERGED_FIRST`` elements on."""
    large: Choice
    small: Choice
    """Below ``_LARGE`` elements, where latency counts more than bandwidth."""


_LARGE = 2**23

_TUNED: dict[tuple[Pass, bool], _Tuned] = {
    ("statistics", False): _Tuned(Choice(64, 16, 4, 4), Choice(64, 8, 4, 4), Choice(64, 4, 2, 8)),
    ("normalise", False): _Tuned(Choice(128, 8, 4, _MOST_PROGRAMS), Choice(64, 8, 8, 4), Choice(64, 8, 8, 4)),
    ("gradient_sums", False): _Tuned(Choice(64, 4, 8, 2), Choice(64, 4, 8, 2), Choice(64, 4, 2, 8)),
    ("input_gradient", False): _Tuned(Choice(128, 2, 4, _MOST_PROGRAMS), Choice(64, 2, 8, 4), Choice(64, 4, 4, 8)),
    ("normalise", True): _Tuned(Choice(64, 8, 8, 4), Choice(64, 8, 8, 4), Choice(64, 8, 4, 8)),
    ("gradient_sums", True): _Tuned(Choice(64, 8, 4, 3), Choice(64, 8, 4, 3), Choice(64, 8, 2, 8)),
    ("input_gradient", True): _Tuned(Choice(128, 8, 1, _MOST_PROGRAMS), Choice(64, 8, 4, 3), Choice(64, 8, 4, 8)),
}
"""(pass, pooled): choices that hold on any device, since programs are counted for each multiprocessor."""

_EXCEPTIONS: dict[tuple[Pass, bool, int, int], Choice] = {
    ("statistics", False, 128, 128**3): Choice(128, 16, 4, 4),
    ("normalise", True, 128, 128**3): Choice(128, 8, 4, 8),
    ("normalise", True, 128, 64**3): Choice(128, 8, 4, 8),
}
"""(pass, pooled, channels, voxels): sites where another choice is more than 3 % faster on an H200."""


@functools.lru_cache(maxsize=1024)
def plan(kernel: Pass, problem: Problem, device: Device) -> Plan:
    """Return the launch of a pass over whole samples."""
    return layout(problem, device, choose(kernel, problem, device))


@functools.lru_cache(maxsize=1024)
def plan_planes(kernel: Pass, problem: Problem, device: Device) -> Plan:
    """Return the launch of a reducing pass over depth planes, each a sample of its own.

    It does not depend on how many planes there are, hence neither do the bits on how a sample is divided.
    """
    return plan(kernel, problem._replace(samples=_NOMINAL_PLANES), device)


def choose(kernel: Pass, problem: Problem, device: Device) -> Choice:
    """Return the tuned choice for a problem on the device."""
    pooled = problem.pooled and kernel != "statistics"
    voxels = problem.depth * problem.height * problem.width
    if device.tuned:
        exception = _EXCEPTIONS.get((kernel, pooled, problem.channels, voxels))
        if exception is not None:
            return exception
    tuned = _TUNED[kernel, pooled]
    if merges_first(problem):
        return tuned.largest
    return tuned.large if problem.channels * voxels >= _LARGE else tuned.small


def merges_first(problem: Problem) -> bool:
    """Tell whether partial results are merged before the pass that needs them, not by each of its programs."""
    return problem.channels * problem.depth * problem.height * problem.width >= _MERGED_FIRST


def layout(problem: Problem, device: Device, choice: Choice) -> Plan:
    """Lay tiles over a problem."""
    channels, groups, depth, height, width, samples, itemsize, pooled = problem
    padded = ceil_power_of_2(channels // groups)
    block_groups = min(ceil_power_of_2(groups), max(1, choice.block_channels // padded))
    blocks = -(-groups // block_groups)

    at_once = choice.warps * device.lanes * (16 // itemsize)
    width_of_tile = block_groups * padded
    rows = max(1, at_once // width_of_tile)
    voxels = depth * height * width
    if pooled:
        unroll = WINDOW
        positions = -(-depth // 2) * -(-height // 2) * -(-width // 2)
        rows = min(rows, ceil_power_of_2(positions))
        tiles = -(-positions // rows)
    else:
        rows = min(rows, ceil_power_of_2(voxels))
        unroll = max(1, min(choice.unroll * at_once // (rows * width_of_tile), choice.unroll))
        # Small tensors: more programs rather than more accesses in flight.
        while unroll > 1 and -(-voxels // (unroll * rows)) * blocks * samples < device.multiprocessors:
            unroll //= 2
        positions = voxels
        tiles = -(-voxels // (unroll * rows))
    wanted = max(1, choice.programs * device.multiprocessors // (blocks * samples))
    least = -(-tiles // min(tiles, wanted))
    # A quarter fewer programs are worth it where that deals the tiles out evenly, without masks.
    turns = next((turns for turns in range(least, least + least // 4 + 1) if tiles % turns == 0), least)
    programs = -(-tiles // turns)

    even = programs * turns * rows * (1 if pooled else unroll) == positions
    even = even and (not pooled or (depth | height | width) % 2 == 0)
    even = even and blocks * width_of_tile == channels
    constants = {
        "C": channels, "GROUPS": groups, "DEPTH": depth, "HEIGHT": height, "WIDTH": width, "UNROLL": unroll,
        "ROWS": rows, "BLOCK_GROUPS": block_groups, "PADDED": padded, "PROGRAMS": programs, "TILES": turns,
        "TOTAL": tiles, "POOL": pooled, "MASKED": not even,
    }  # fmt: skip
    return Plan(tuple(constants.items()), choice.warps, programs, blocks)


def merging(parts: int, launch: Plan) -> dict[str, int]:
    """Return the compile-time arguments of a pass whose programs merge ``parts`` partial results of their groups."""
    block_groups: int = dict(launch.constants)["BLOCK_GROUPS"]
    chunk = min(ceil_power_of_2(parts), max(1, _MERGED_AT_ONCE // block_groups))
    return {"PARTS": parts, "CHUNK": chunk}


MERGED = {"PARTS": 0, "CHUNK": 0}
"""The same of a pass that a launch of its own has merged them for."""


def merger(parts: int, channels: int, groups: int) -> Plan:
    """Return the launch that merges ``parts`` partial results, a program for each group of a sample."""
    constants = {
        "C": channels, "GROUPS": groups, "PADDED": ceil_power_of_2(channels // groups), "PARTS": parts,
        "CHUNK": min(ceil_power_of_2(parts), _MERGED_BY_ONE),
    }  # fmt: skip
    return Plan(tuple(constants.items()), warps=4, programs=groups, blocks=1)


def summing(parts: int, channels: int) -> tuple[dict[str, int], int]:
    """Return the compile-time arguments for the sums over ``parts`` rows of channels, and the extra programs."""
    return {"CHANNEL_PARTS": parts, "COLUMNS": _SUMMED_COLUMNS}, -(-channels // _SUMMED_COLUMNS)


def ceil_power_of_2(n: int) -> int:
    """Return the least power of two that is at least ``n`` >= 1."""
    return 1 << (n - 1).bit_length()
