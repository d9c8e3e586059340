"""Data generation against a straightforward implementation of the same steps, on one core.

    python benchmarks/datagen.py benchmarks/results/DEVICE/datagen.csv

The straightforward arm is what one would write first with numba and NumPy: the chaos game compiled,
whole clouds in memory, mean and variance by NumPy, one row per occupied voxel and duplicates removed by
sorting the rows, `numpy.save`. It draws the same random numbers, so it must find the same categories
and paint the same voxels; that is checked before anything is timed. Each step also times our arm against
itself: the ratio of that control says how far a ratio can be trusted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

import script
from tables import write_with_conditions

from scaffold import rng
from scaffold.cli.common import at_least_one
from scaffold.config import RunConfig
from scaffold.dataset import voxelize
from scaffold.dataset.plan import make_plan
from scaffold.dataset.render import render_part
from scaffold.fractals import ifs, search
from scaffold.fractals.instances import generate_instances
from scaffold.interleave import interleave
from scaffold.parallel.team import Solo

SEED = 42
COLUMNS = ("step", "scale", "arm", "unit", "rate", "rate_low", "rate_high", "speedup")

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile ``function`` as one would first, and keep its type."""
    return cast(_F, njit(function))


@compiled
def step(r: NDArray[np.float64], x: float, y: float, z: float) -> tuple[float, float, float]:
    """Return the image of a point under one map."""
    return (
        (r[0] * x + r[1] * y) + (r[2] * z + r[9]),
        (r[3] * x + r[4] * y) + (r[5] * z + r[10]),
        (r[6] * x + r[7] * y) + (r[8] * z + r[11]),
    )


@compiled
def play(params: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cloud that ``draws`` from [0, 1) choose, (n, 3); cut short where it runs away."""
    cloud = np.empty((draws.size, 3))
    x, y, z = 0.0, 0.0, 0.0
    for i in range(draws.size):
        cloud[i, 0], cloud[i, 1], cloud[i, 2] = x, y, z
        if max(abs(x), abs(y), abs(z)) > ifs.LIMIT:
            return cloud[: i + 1]
        x, y, z = step(params[0] if draws[i] < params[0, 12] else params[1], x, y, z)
    return cloud


@compiled
def play_numba_random(params: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return a cloud, (n, 3), drawn from numba's own generator."""
    cloud = np.empty((n, 3))
    x, y, z = 0.0, 0.0, 0.0
    for i in range(n):
        cloud[i, 0], cloud[i, 1], cloud[i, 2] = x, y, z
        x, y, z = step(params[0] if np.random.random() < params[0, 12] else params[1], x, y, z)
    return cloud


def plain_search(config: RunConfig, candidates: int) -> list[int]:
    """Return which of the first ``candidates`` are categories, judged from whole clouds."""
    clouds = rng.words(rng.key(config.seed, "candidate clouds"), candidates)
    accepted = []
    for number in range(candidates):
        params = search.candidate(config.seed, number)
        cloud = play(params, rng.uniform(int(clouds[number]), config.point_num))
        if not (np.abs(cloud) <= ifs.LIMIT).all():
            continue
        extent = cloud.max(axis=0) - cloud.min(axis=0)
        if (extent > 0).all():
            scaled = (cloud - cloud.mean(axis=0)) * (2 * config.normalize / extent)
            if (scaled.var(axis=0) > config.variance_threshold).all():
                accepted.append(number)
    return accepted


def our_search(config: RunConfig, candidates: int) -> list[int]:
    """Return the same through the package's own judge, on one thread."""
    verdicts = np.empty(candidates, np.int8)
    coefficients, clouds = rng.key(config.seed, "candidate coefficients"), rng.key(config.seed, "candidate clouds")
    ifs.examine(
        0, verdicts, coefficients, clouds, config.point_num, config.normalize, config.variance_threshold
    )  # fmt: skip
    return np.flatnonzero(verdicts == ifs.Verdict.ACCEPTED).tolist()


def plain_voxels(points: NDArray[np.floating], grid: int) -> NDArray[np.int64]:
    """Return the occupied voxels, (n, 3), duplicates removed by sorting the rows."""
    points = points.astype(np.float64)
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    edge = (extent.max() + 1e-6) / grid
    cells = np.floor((points - low) / edge + (grid - extent / edge) / 2).astype(np.int64)
    return np.unique(np.clip(cells, 0, grid - 1), axis=0)


def plain_render(config: RunConfig, instances: Path, output: Path, durable: bool) -> None:
    """Write images and masks of all volumes of a data set, one pair of files a volume.

    Args:
        config: the data set's settings.
        instances: folder of the clouds.
        output: folder of the volumes.
        durable: wait until each file is on disk, as our own renderer does.
    """
    plan, edge = make_plan(config), config.vol_size
    for volume, pairs in enumerate(plan.pairs):
        image = np.zeros((3, edge, edge, edge), np.float32)
        mask = np.zeros((edge, edge, edge), np.uint16)
        for category, instance in pairs.tolist():
            cloud = np.load(instances / f"{category}.npy", mmap_mode="r")[instance]
            d, h, w = plain_voxels(cloud, edge).T
            image[:, d, h, w] = plan.palette[category + 1][:, None]
            mask[d, h, w] = category + 1
        for name, array in ((f"{volume}.npy", image), (f"{volume}_mask.npy", mask)):
            with open(output / name, "wb") as file:
                np.save(file, array)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())


class Report:
    """Collects rows and prints them as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def step(
        self,
        step: str,
        scale: int,
        unit: str,
        amount: float,
        repeats: int,
        plain: Callable[[], object],
        ours: Callable[[], object],
        **others: Callable[[], object],
    ) -> None:
        """Time ``plain``, ``others``, ``ours`` and ``ours`` again; record rates of ``amount`` per second."""
        arms = {"straightforward": plain, **others, "scaffold": ours, "scaffold again": ours}
        for run in arms.values():
            run()
        seconds = interleave(list(arms.values()), repeats)
        for arm, own in zip(arms, seconds, strict=True):
            low, middle, high = np.percentile(own, [25, 50, 75])
            speedup = median(base / value for base, value in zip(seconds[0], own, strict=True))
            row = {
                "step": step,
                "scale": scale,
                "arm": arm,
                "unit": unit,
                "rate": f"{amount / middle:.4g}",
                "rate_low": f"{amount / high:.4g}",
                "rate_high": f"{amount / low:.4g}",
                "speedup": f"{speedup:.3g}",
            }
            self.rows.append(row)
            print(*(f"{row[name]:>16}" for name in COLUMNS), flush=True)


def time_search(report: Report, scale: int, repeats: int) -> None:
    """Time the judging of candidates."""
    config, candidates = RunConfig(problem_scale=scale, seed=SEED), 600
    assert plain_search(config, candidates) == our_search(config, candidates), "the arms accept other categories"
    report.step(
        "search", scale, "candidates/s", candidates, repeats,
        lambda: plain_search(config, candidates), lambda: our_search(config, candidates),
    )  # fmt: skip


def time_points(report: Report, params: NDArray[np.float64], scale: int, repeats: int) -> None:
    """Time the chaos game alone, in one long cloud."""
    n, key = 4_000_000, rng.key(SEED, "benchmark")
    report.step(
        "points", scale, "points/s", n, repeats,
        lambda: play_numba_random(params, n), lambda: ifs.points(params, n, key),
    )  # fmt: skip


def time_voxelization(report: Report, params: NDArray[np.float64], scale: int, repeats: int) -> None:
    """Time the painting of one cloud."""
    config = RunConfig(problem_scale=scale, seed=SEED)
    cloud = ifs.points(params, config.point_num, rng.key(SEED, "benchmark")).astype(np.float32)
    edge = config.vol_size
    mask = np.zeros((edge, edge, edge), np.uint16)
    assert np.array_equal(plain_voxels(cloud, edge), voxelize.voxels(cloud, edge)), "the arms paint other voxels"
    report.step(
        "voxelize", scale, "points/s", len(cloud), 2 * repeats + 1,
        lambda: plain_voxels(cloud, edge),
        lambda: voxelize.paint(mask, cloud, voxelize.frame(cloud, edge), 1),
    )  # fmt: skip


def time_rendering(report: Report, scale: int, repeats: int, scratch: Path) -> None:
    """Time clouds to files, in ``scratch``."""
    config = RunConfig(
        problem_scale=scale, seed=SEED, n_categories=2,
        n_instances_used_per_fractal=6 if scale < 8 else 3, val_split=50,
    )  # fmt: skip
    library = search.find_categories(config)
    clouds, ours, plain = (scratch / f"{name}{scale}" for name in ("clouds", "ours", "plain"))
    plain.mkdir()
    for category in range(config.n_categories):
        generate_instances(config, library.params[category], category, clouds / f"{category}.npy")
    render_part(config, 0, clouds, ours, Solo())
    plain_render(config, clouds, plain, durable=False)
    masks = np.load(ours / "masks.npy", mmap_mode="r")
    assert all(np.array_equal(masks[v], np.load(plain / f"{v}_mask.npy")) for v in range(config.n_volumes))
    report.step(
        "render", scale, "voxels/s", config.n_volumes * config.vol_size**3, repeats,
        partial(plain_render, config, clouds, plain, durable=False),
        partial(render_part, config, 0, clouds, ours, Solo()),
        **{"straightforward, on disk": partial(plain_render, config, clouds, plain, durable=True)},
    )  # fmt: skip


def benchmark(scratch: Path, scales: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Run all steps, those that do not grow with the volume at the first scale only; return the rows of the table."""
    report = Report()
    time_search(report, scales[0], repeats)
    params = search.find_categories(RunConfig(problem_scale=scales[0], seed=SEED)).params[0]
    time_points(report, params, scales[0], repeats)
    for scale in scales:
        time_voxelization(report, params, scale, repeats)
    for scale in scales:
        time_rendering(report, scale, repeats, scratch)
    return report.rows


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="CSV file to write")
    parser.add_argument("--scratch", type=Path, help="folder on the disk to measure (default: the temporary one)")
    parser.add_argument("--scales", type=at_least_one, nargs="+", default=[7, 8], metavar="S", help="default: 7 8")
    parser.add_argument("--repeats", type=at_least_one, default=7, metavar="N", help="rounds of each step (default: 7)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        rows = benchmark(Path(scratch), arguments.scales, arguments.repeats)
    write_with_conditions(arguments.output, COLUMNS, rows)


if __name__ == "__main__":
    script.run(main)
