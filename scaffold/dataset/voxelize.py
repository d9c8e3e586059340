"""From a point cloud to the voxels of a cubic grid.

Axes: x, y and z of a point become D, H and W of a volume, its indices 0, 1 and 2.

A voxel that holds many points is wanted once. Painting is idempotent, so points are painted straight
into the label mask, and nothing is sorted or de-duplicated: the cost is one pass over the points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaffold.compiled import compiled

_MARGIN = 1e-6


class Frame(NamedTuple):
    """How a cloud is placed in its grid: voxel = floor((point - low) / edge + offset), per axis.

    Attributes:
        low: least coordinate of the cloud, (3,) float64.
        edge: edge of a voxel in the cloud's units, the same along all axes.
        offset: empty voxels before the cloud, (3,) float64.
    """

    low: NDArray[np.float64]
    edge: float
    offset: NDArray[np.float64]


def frame(points: NDArray[np.floating], grid: int) -> Frame:
    """Fit the bounding box of ``points``, (n, 3), into the centre of a grid of ``grid``^3 voxels.

    The longest axis spans the grid; the margin of 1e-6 keeps its last point inside the last voxel.
    There is no further half or whole voxel in the offset: it would empty the last plane of half its
    points and pile them on the first.

    Raises:
        ValueError: there is no point, or a coordinate is not finite.
    """
    low, high, finite = _bounds(points)
    if not finite:
        raise ValueError("has no point" if len(points) == 0 else "has a coordinate that is not finite")
    extent = high - low
    edge = (float(extent.max()) + _MARGIN) / grid
    return Frame(low, edge, (grid - extent / edge) / 2)


def paint(
    mask: NDArray[np.unsignedinteger], points: NDArray[np.floating], place: Frame, label: int, first: int = 0
) -> None:
    """Give every voxel that holds a point the value ``label``, in place.

    Args:
        mask: planes ``first``, ``first + 1``, ... of the volume, (planes, grid, grid); points in other
            planes are passed over.
        points: the cloud, (n, 3).
        place: its :func:`frame`, which looks at the whole cloud.
        label: any value of the mask's type.
        first: index of the first plane of ``mask`` within the volume.
    """
    _paint(mask, points, place.low, place.edge, place.offset, label, first)


def voxels(points: NDArray[np.floating], grid: int) -> NDArray[np.int64]:
    """Return each voxel that holds a point once, (n, 3), ordered by D, then H, then W.

    Raises:
        ValueError: see :func:`frame`.
    """
    occupied = np.zeros((grid, grid, grid), dtype=np.uint8)
    paint(occupied, points, frame(points, grid), 1)
    indices = np.unravel_index(np.flatnonzero(occupied.view(np.bool_)), occupied.shape)
    return np.stack(indices, axis=1)


@compiled
def _bounds(points: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    low = np.full(3, np.inf)
    high = np.full(3, -np.inf)
    for i in range(points.shape[0]):
        for axis in range(3):
            value = np.float64(points[i, axis])
            if not np.isfinite(value):
                return low, high, False
            low[axis] = min(low[axis], value)
            high[axis] = max(high[axis], value)
    return low, high, points.shape[0] > 0


@compiled
def _paint(
    mask: NDArray[np.unsignedinteger],
    points: NDArray[np.floating],
    low: NDArray[np.float64],
    edge: float,
    offset: NDArray[np.float64],
    label: int,
    first: int,
) -> None:
    last = mask.shape[1] - 1
    for i in range(points.shape[0]):
        plane = _cell(points[i, 0], low[0], edge, offset[0], last) - first
        if 0 <= plane < mask.shape[0]:
            row = _cell(points[i, 1], low[1], edge, offset[1], last)
            column = _cell(points[i, 2], low[2], edge, offset[2], last)
            mask[plane, row, column] = label


@compiled
def _cell(value: float, low: float, edge: float, offset: float, last: int) -> int:
    # Rounding may carry the outermost points over the edge of the grid.
    return min(max(int(np.floor((np.float64(value) - low) / edge + offset)), 0), last)
