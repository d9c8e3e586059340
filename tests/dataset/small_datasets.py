"""Small data sets made of seeded synthetic clouds, and the plainest way to render them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaffold import rng
from scaffold.config import INSTANCES_PER_CATEGORY, RunConfig
from scaffold.dataset.meta import Meta
from scaffold.dataset.plan import make_plan
from scaffold.dataset.publish import publish
from scaffold.dataset.render import render_part
from scaffold.parallel.team import Solo


@dataclass(frozen=True)
class Made:
    """A published data set and what it was made from."""

    config: RunConfig
    instances: Path
    directory: Path
    meta: Meta


def small_config(**changes: object) -> RunConfig:
    """80 volumes of 16^3 voxels: two parts, of 64 and of 16 samples."""
    settings = {"problem_scale": 4, "n_categories": 5, "n_instances_used_per_fractal": 48, **changes}
    return RunConfig.model_validate(settings)


def write_instances(folder: Path, config: RunConfig) -> Path:
    """Make a cloud file per category: seeded points in a box of unequal sides, on any platform the same."""
    folder.mkdir(parents=True)
    for category in range(config.n_categories):
        draws = rng.uniform(rng.key(7, "test cloud", category), INSTANCES_PER_CATEGORY * config.point_num * 3)
        clouds = draws.reshape(INSTANCES_PER_CATEGORY, config.point_num, 3) * [1.0, 0.75, 0.5]
        np.save(folder / f"{category}.npy", clouds.astype(np.float32))
    return folder


def make(config: RunConfig, root: Path) -> Made:
    """Make and publish the data set of ``config`` below ``root``."""
    instances = write_instances(root / "instances", config)
    directory = root / "data"
    for part in range(config.n_parts):
        render_part(config, part, instances, directory / "parts" / f"{part:04d}", Solo())
    return Made(config, instances, directory, publish(config, directory / "parts", directory / "meta.yaml"))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def plain_render(made: Made, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Render a sample in the most obvious way: sort the voxel rows, drop doubles, index with them."""
    plan, grid = make_plan(made.config), made.config.vol_size
    image = np.zeros((3, grid, grid, grid), dtype=np.float32)
    mask = np.zeros((grid, grid, grid), dtype=np.uint16)
    for category, instance in plan.pairs[sample]:
        points = np.load(made.instances / f"{category}.npy")[instance].astype(np.float64)
        d, h, w = plain_voxels(points, grid).T
        mask[d, h, w] = category + 1
        for channel in range(3):
            image[channel, d, h, w] = plan.palette[category + 1, channel]
    return image, mask


def plain_voxels(points: np.ndarray, grid: int) -> np.ndarray:
    """Voxelize (n, 3) points by sorting rows."""
    low = points.min(axis=0).astype(np.float64)
    extent = points.max(axis=0) - low
    edge = (extent.max() + 1e-6) / grid
    cells = np.floor((points - low) / edge + (grid - extent / edge) / 2).astype(np.int64)
    return np.unique(np.clip(cells, 0, grid - 1), axis=0)
