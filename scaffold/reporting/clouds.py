"""The categories of a library, each as a cloud in 3-D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaffold.reporting import style
from scaffold.reporting.results import raise_damaged
from scaffold.wording import count

_POINTS = 20_000
_SHOWN = 48
"""Categories on one sheet; more would be stamps."""

_COLUMNS = 3
_VIEW = {"elev": 22, "azim": -58}


def draw_categories(
    clouds: Sequence[NDArray[np.float32]], categories: NDArray[np.float64], path: Path, library: str
) -> None:
    """Draw a sheet with every category seen obliquely, equal scales on its three axes.

    A fractal of two maps is the union of two affine images of itself; the two colours tell them
    apart.

    Args:
        clouds: points of each category in the order of the chaos game, (points, 3).
        categories: their maps, (n, 2, 13), as :func:`maps_used` takes them.
        path: figure to write.
        library: name of the library, for the title.
    """
    shown = clouds[:_SHOWN]
    columns = len(shown) if len(shown) <= _COLUMNS else min(math.ceil(math.sqrt(len(shown))), 2 * _COLUMNS)
    rows = -(-len(shown) // columns)
    more = f" · the first {len(shown)} of {len(clouds)}" if len(clouds) > len(shown) else ""
    title = count(len(clouds), "category", "categories")
    size = (max(2.6 * columns, 5.2), 0.6 + 2.6 * rows)
    subtitle = f"{library}{more} · colour: the map that each point is an image under"
    with style.figure(path, title, subtitle, size) as drawing:
        layout: Any = drawing.get_layout_engine()
        layout.set(wspace=0, hspace=0)
        for k, points in enumerate(shown):
            axes: Any = drawing.add_subplot(rows, columns, k + 1, projection="3d")
            _cloud(axes, points, maps_used(points, categories[k]))
            axes.text2D(0.5, 1.02, f"category {k}", transform=axes.transAxes, ha="center", fontsize=9.5, weight="bold")


def maps_used(points: NDArray[np.floating], category: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return which map made each point from the one before it, (points,); 0 for the first, which is given.

    Args:
        points: a cloud in the order of the chaos game, (points, 3).
        category: per map the matrix row by row, the translation and the probability, (2, 13).
    """
    before, after = points[:-1].astype(np.float64), points[1:]
    matrices, shifts = category[:, :9].reshape(-1, 3, 3), category[:, 9:12]
    images = np.einsum("mij,pj->mpi", matrices, before) + shifts[:, None]
    nearest = np.argmin(np.square(images - after).sum(axis=2), axis=0)
    return np.concatenate([np.zeros(min(len(points), 1), np.intp), nearest])


def read_cloud(path: Path) -> NDArray[np.float32]:
    """Return the first points of the unweighted instance of a category, at most 20 000, (points, 3).

    The first points of a chaos game are as fair a sample of the fractal as any, and reading only
    them keeps this cheap at any problem scale.

    Raises:
        DamagedFileError: missing, truncated, or not (instances, points, 3) float32.
    """
    try:
        instances = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise_damaged(path, f"cannot be read: {error}", error)
    if instances.ndim != 3 or instances.shape[2] != 3 or instances.dtype != np.float32:
        raise_damaged(path, f"is not (instances, points, 3) float32 but {instances.shape} {instances.dtype}")
    points = np.array(instances[0, :_POINTS])
    if not np.isfinite(points).all():
        raise_damaged(path, "has a non-finite coordinate")
    return points


def _cloud(axes: Any, points: NDArray[np.float32], maps: NDArray[np.intp]) -> None:
    colours = np.array(style.CYCLE)[[0, 3]][maps]
    # Without a cast of shadow, order is what shows depth: matplotlib sorts by depth when it fades.
    axes.scatter(*points.T, c=colours, s=min(1200 / len(points) + 0.7, 25), alpha=0.7, linewidths=0, depthshade=True)
    low, high = points.min(axis=0), points.max(axis=0)
    centre, half = (low + high) / 2, max(float((high - low).max()) / 2, 1e-6)
    for set_limits, middle in zip((axes.set_xlim, axes.set_ylim, axes.set_zlim), centre, strict=True):
        set_limits(middle - half, middle + half)
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_proj_type("ortho")
    axes.view_init(**_VIEW)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_ticklabels([])
        axis.set_tick_params(color="none")
        axis.line.set_color(style.FAINT)
        axis.pane.set_facecolor("#f7f7f8")
        axis.pane.set_edgecolor(style.FAINT)
