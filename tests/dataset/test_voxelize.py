"""Point clouds land in the right voxels."""

from __future__ import annotations

import numpy as np
import pytest
from small_datasets import plain_voxels

from scaffold.dataset.voxelize import frame, paint, voxels


def _cloud(n: int, dtype: type = np.float32) -> np.ndarray:
    """A clustered cloud, off the origin, of unequal extents; many points share a voxel."""
    draws = np.random.default_rng(5).normal(size=(n, 3)) ** 3
    return (draws * [1.0, 0.4, 2.5] + [3.0, -70.0, 0.2]).astype(dtype)


@pytest.mark.parametrize("grid", [16, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_voxels_equal_sorting(grid, dtype):
    """Broken when painting gives other voxels than the reference that sorts rows and drops doubles."""
    cloud = _cloud(4000, dtype)
    wanted = plain_voxels(cloud, grid)
    assert len(wanted) < len(cloud), "the cloud must have doubles"
    assert np.array_equal(voxels(cloud, grid), wanted)


def test_x_y_z_are_depth_height_width():
    """Broken when two axes are swapped: each has its own extent here, and all boxes are centred."""
    box = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * [1.0, 0.5, 0.25]
    found = voxels(box.astype(np.float32), 64)
    assert [found[:, axis].min() for axis in range(3)] == [0, 16, 24]
    assert [found[:, axis].max() for axis in range(3)] == [63, 47, 39]


def test_first_and_last_plane_are_as_dense_as_the_others():
    """Broken when clouds are shifted by half a voxel, as in LLNL's format 3: planes of 1.5 and 0.5 density."""
    i = np.arange(1024)
    line = np.stack([i / 1023, i % 32 / 31, i // 32 / 31], axis=1)
    place = frame(line, 32)

    def density(shift: float) -> np.ndarray:
        mask = np.zeros((32, 32, 32), dtype=np.uint8)
        paint(mask, line, place._replace(offset=place.offset - [shift, 0, 0]), 1)
        return mask.sum(axis=(1, 2))

    assert density(0.0).tolist() == [32] * 32
    assert density(0.5)[[0, -1]].tolist() == [48, 16], "control: the shifted frame shows"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_points_are_refused(value):
    """Broken when a NaN or an infinity anywhere in a cloud is painted somewhere."""
    cloud = _cloud(10)
    cloud[9, 2] = value
    with pytest.raises(ValueError, match="not finite"):
        frame(cloud, 16)


def test_cloud_without_points_is_refused():
    """Broken when an empty cloud gives an empty frame of infinities."""
    with pytest.raises(ValueError, match="no point"):
        frame(np.zeros((0, 3), dtype=np.float32), 16)


def test_single_place_is_in_the_middle():
    """Broken when a cloud without extent divides by zero or leaves the grid."""
    assert voxels(np.full((5, 3), 7.0, dtype=np.float32), 16).tolist() == [[8, 8, 8]]


def test_outermost_points_stay_inside_at_any_magnitude():
    """Broken when the margin vanishes in a large extent, and the last point is written past the grid."""
    cloud = np.array([[0, 0, 0], [1e9, 1e9, 1e9]], dtype=np.float32)
    assert voxels(cloud, 8).tolist() == [[0, 0, 0], [7, 7, 7]]


def test_slabs_together_are_the_volume():
    """Broken when a slab drops, moves or adds a point at its borders; every cut of 16 planes is tried."""
    cloud, grid = _cloud(500), 16
    place = frame(cloud, grid)
    whole = np.zeros((grid,) * 3, dtype=np.uint16)
    paint(whole, cloud, place, 3)
    for cut in range(1, grid):
        slabs = [np.zeros((last - first, grid, grid), dtype=np.uint16) for first, last in ((0, cut), (cut, grid))]
        paint(slabs[0], cloud, place, 3, 0)
        paint(slabs[1], cloud, place, 3, cut)
        assert np.array_equal(np.concatenate(slabs), whole)
