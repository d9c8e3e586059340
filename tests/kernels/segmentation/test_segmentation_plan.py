"""Launches of the loss sums."""

import pytest

from scaffold.kernels.segmentation.plan import plan


@pytest.mark.parametrize("extent", [1, 255, 257, 128**3, 256**3, 2**30])
@pytest.mark.parametrize(("samples", "classes"), [(1, 6), (3, 2), (70, 33)])
def test_programs_cover_all_tiles_once(samples, classes, extent):
    """Voxels would be left out, or a program have nothing to do."""
    made = plan(samples, classes, extent, 132)
    assert made.tiles * made.block >= extent > (made.tiles - 1) * made.block
    assert made.programs * made.turns >= made.tiles > made.programs * (made.turns - 1)
    assert made.programs >= 1
    assert made.width >= classes


def test_program_counts_fit_the_device():
    """Too few programs leave it idle; partial sums of too many are work of their own."""
    made = plan(1, 6, 128**3, 132)
    assert 2 * 132 <= made.programs <= 16 * 132
