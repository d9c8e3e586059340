"""Launch plans of the step up: every product is formed once, whatever the sizes."""

import pytest

from scaffold.kernels.convolution import upsample_plan as plan

NETWORK = [
    plan.Sizes(1, channels, (edge,) * 3, (2 * edge,) * 3)
    for channels, edge in [
        (64, 64),
        (128, 32),
        (256, 16),
        (512, 8),
        (64, 128),
        (128, 64),
        (256, 32),
        (512, 16),
        (1024, 8),
    ]
]
"""The levels of the reference networks at scales 7 and 8."""

ODD = [
    plan.Sizes(2, 16, (1, 1, 1), (2, 3, 2)),
    plan.Sizes(1, 48, (3, 5, 7), (7, 10, 15)),
    plan.Sizes(3, 80, (9, 9, 9), (18, 18, 19)),
]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("sizes", NETWORK + ODD, ids=str)
@pytest.mark.parametrize("multiprocessors", [1, 132, 304])
def test_blocks_divide_what_no_mask_guards(sizes, itemsize, multiprocessors):
    """Columns and inner sums have no masks: a block that overhangs would read and write its neighbours."""
    C = sizes.channels
    forward = plan.forward_tile(sizes, itemsize)
    assert (8 * C % forward.block_n, 2 * C % forward.block_k) == (0, 0)
    dx = plan.input_gradient_tile(sizes, itemsize, multiprocessors)
    assert (2 * C % dx.block_n, 8 * C % (dx.splits * dx.block_k)) == (0, 0)
    dw = plan.weight_gradient_tile(sizes, itemsize, multiprocessors)
    assert (2 * C % dw.block_m, 8 * C % dw.block_n) == (0, 0)


@pytest.mark.parametrize("sizes", NETWORK + ODD, ids=str)
def test_shares_cover_the_voxels_once(sizes):
    """Idea 63: blocks of voxels would be left out, or shares be empty at the network's sizes."""
    tile = plan.weight_gradient_tile(sizes, 2, 132)
    dense = plan.dense_strides(2 * sizes.channels, sizes.coarse)
    launch = plan.weight_gradient_launch(sizes, dense, dense, tile, wide=False)
    steps, blocks = launch.constants["STEPS"], -(-sizes.voxels // tile.block_k)
    walked = sorted(step * tile.splits + split for step in range(steps) for split in range(tile.splits))
    assert walked[:blocks] == list(range(blocks))
    assert len(walked) - blocks < tile.splits


@pytest.mark.parametrize("sizes", NETWORK, ids=str)
def test_network_levels_fill_the_device_within_a_workspace(sizes):
    """A level would leave most of 132 multiprocessors idle, or its partial sums outgrow 64 MiB."""
    dense = plan.dense_strides(2 * sizes.channels, sizes.coarse)
    dw = plan.weight_gradient_tile(sizes, 2, 132)
    dx = plan.input_gradient_tile(sizes, 2, 132)
    launches = [
        plan.forward_launch(sizes, dense, dense, plan.forward_tile(sizes, 2), copy_skip=True, wide=False),
        plan.input_gradient_launch(sizes, dense, dx, wide=False),
        plan.weight_gradient_launch(sizes, dense, dense, dw, wide=False),
    ]
    for launch in launches:
        assert launch.grid[0] * launch.grid[1] >= 128, launch.kernel
    C = sizes.channels
    for splits, size in ((dw.splits, 16 * C * C), (dx.splits, 2 * C * sizes.voxels)):
        assert splits == 1 or 4 * splits * size <= 64 * 2**20


def test_plan_follows_from_its_arguments_alone():
    """Idea 22: bits would depend on a timing, or on what was planned before."""
    first = [plan.weight_gradient_tile(sizes, 2, 132) for sizes in NETWORK]
    plan.weight_gradient_tile.cache_clear()
    assert [plan.weight_gradient_tile(sizes, 2, 132) for sizes in reversed(NETWORK)] == first[::-1]
    assert plan.weight_gradient_tile(NETWORK[0], 2, 66) != first[0], "control: the device counts"
