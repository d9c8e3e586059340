"""Launch plans: every voxel is covered, and nothing but shape and device decides."""

import math
from typing import get_args

import pytest

from scaffold.kernels.group_norm import plan
from scaffold.kernels.group_norm.plan import Device, Pass, Problem

H200 = Device(132, 32, tuned=True)
SITES = [(64, 256), (128, 128), (256, 64), (512, 32), (1024, 16), (2048, 8), (64, 128), (128, 64), (256, 32), (512, 16)]
ODD = [
    Problem(30, 3, 3, 5, 7, 2, 4, False),
    Problem(30, 3, 3, 5, 7, 2, 4, True),
    Problem(4096, 1, 1, 1, 1, 1, 2, False),
    Problem(48, 6, 9, 2, 300, 1, 2, True),
    Problem(8192, 8, 2, 2, 2, 3, 2, False),
]


def problems():
    for channels, edge in SITES:
        for pooled in (False, True):
            yield Problem(channels, 8, edge, edge, edge, 1, 2, pooled)
    yield from ODD


@pytest.mark.parametrize("kernel", get_args(Pass))
@pytest.mark.parametrize("problem", list(problems()), ids=str)
def test_programs_cover_every_voxel_once(kernel, problem):
    """A tile would be left out, or the last ones not be masked."""
    launch = plan.plan(kernel, problem, H200)
    sizes = dict(launch.constants)
    extents = (problem.depth, problem.height, problem.width)
    positions = math.prod(-(-extent // 2) for extent in extents) if problem.pooled else math.prod(extents)
    tile = sizes["ROWS"] * (1 if problem.pooled else sizes["UNROLL"])
    assert (sizes["TOTAL"] - 1) * tile < positions <= sizes["TOTAL"] * tile
    assert launch.programs * (sizes["TILES"] - 1) < sizes["TOTAL"] <= launch.programs * sizes["TILES"]
    assert launch.blocks * sizes["BLOCK_GROUPS"] >= problem.groups
    assert sizes["PADDED"] >= problem.channels // problem.groups
    whole = launch.programs * sizes["TILES"] * tile == positions
    whole &= launch.blocks * sizes["BLOCK_GROUPS"] * sizes["PADDED"] == problem.channels
    whole &= not problem.pooled or all(extent % 2 == 0 for extent in extents)
    assert sizes["MASKED"] == (not whole)


@pytest.mark.parametrize("kernel", get_args(Pass))
@pytest.mark.parametrize(("channels", "edge"), SITES)
def test_shapes_of_the_benchmark_fill_the_device_without_masks(kernel, channels, edge):
    """Masks cost instructions in every access; and with fewer programs than multiprocessors some would idle."""
    launch = plan.plan(kernel, Problem(channels, 8, edge, edge, edge, 1, 2, False), H200)
    assert not dict(launch.constants)["MASKED"]
    assert launch.programs * launch.blocks >= 0.96 * H200.multiprocessors


def test_planes_are_divided_alike_however_many_there_are():
    """The bits would depend on how many devices share a sample."""
    one, many = (
        plan.plan_planes("statistics", Problem(64, 8, 1, 128, 128, planes, 2, False), H200) for planes in (1, 128)
    )
    assert one == many
    assert plan.plan("statistics", Problem(64, 8, 1, 128, 128, 1, 2, False), H200) != one, "control: samples count"


def test_exceptions_are_for_the_device_that_they_were_measured_on():
    """Another GPU with as many multiprocessors would run what is fast on an H200."""
    largest = Problem(128, 8, 128, 128, 128, 1, 2, False)
    assert plan.choose("statistics", largest, H200) == plan._EXCEPTIONS["statistics", False, 128, 128**3]
    assert plan.choose("statistics", largest, Device(132, 32)) == plan._TUNED["statistics", False].largest
    smaller = largest._replace(depth=64, height=64, width=64)
    assert plan.choose("statistics", smaller, H200) == plan.choose("statistics", smaller, Device(132, 32))
