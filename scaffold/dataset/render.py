"""Rendering one part of a data set: from point clouds to the files of its samples.

The work is cut into slabs, runs of depth planes of one sample, which the ranks share out. A rank
holds one cloud and the mask of one slab; of the image only a megabyte exists at a time, since each
piece of the mask is coloured into one small buffer and written at once. So a worker stays within its
memory whatever the scale, and every byte is written once, zeros included: a file with holes would
cost a reader less than the benchmark means to measure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaffold import atomic, provenance
from scaffold.arrays import ArrayFile, write_at
from scaffold.config import RunConfig, config_id
from scaffold.config.identity import dataset_settings
from scaffold.dataset import labels, voxelize
from scaffold.dataset.layout import INDEX, Layout
from scaffold.dataset.memory import MEMORY, deepest_slab, piece_planes
from scaffold.dataset.meta import PART_FORMAT, PART_FORMAT_VERSION, PartIndex, PartSample
from scaffold.dataset.plan import CHANNELS, Plan, make_plan
from scaffold.errors import DamagedFileError, UserError, WriteError
from scaffold.fractals.instances import load_instance
from scaffold.parallel.team import Team
from scaffold.progress import track
from scaffold.remedy import rebuild_command


@dataclass(frozen=True)
class Slab:
    """Planes ``first`` to ``last - 1`` of ``sample``."""

    sample: int
    first: int
    last: int


@dataclass(frozen=True)
class _Task:
    """What all ranks know of the part: settings, plan, where clouds come from, and what is made."""

    config: RunConfig
    plan: Plan
    instances: Path
    samples: range
    files: list[ArrayFile]

    @property
    def masks(self) -> ArrayFile:
        return self.files[-1]

    @property
    def folder(self) -> Path:
        return self.masks.path.parent


@dataclass(frozen=True)
class _Painted:
    """What is known of a slab once it is written: a digest for each plane, and voxels of each label."""

    slab: Slab
    digests: list[bytes]
    voxels: dict[int, int]


def render_part(config: RunConfig, part: int, instances: Path, output: Path, team: Team, memory: int = MEMORY) -> None:
    """Render the samples of ``part`` into the folder ``output``. Collective.

    The array files appear together at the end, and then ``part.json``. Their bytes depend on
    ``config`` and ``part`` alone, not on the number of ranks or on ``memory``.

    Args:
        config: the run whose data set it is.
        part: number of the part.
        instances: folder of the clouds, one file per category.
        output: folder of the part.
        team: the ranks that share the work.
        memory: bytes that a rank may use for clouds, masks and buffers.

    Raises:
        RankError: on every rank, with the cause: ``UserError`` (no such part, or too little memory
            for one plane), ``DamagedFileError`` (a cloud), or ``WriteError`` (disk full; nothing of
            the part is left).
    """
    layout = Layout.of(config)
    with team.together(f"preparing part {part}"):
        if part not in range(layout.n_parts):
            raise UserError(f"--part {part}: the data set has parts 0 to {layout.n_parts - 1}")
        samples = layout.samples(part)
        task = _Task(config, make_plan(config), instances, samples, layout.arrays(output, part))
        share = cut(samples, layout.edge, deepest_slab(config, memory), team.size)[team.rank]
    with _temporaries(task, team) as temporaries:
        with team.together(f"rendering part {part}"), _opened(task, temporaries) as descriptors:
            painted = [_render(task, slab, descriptors) for slab in track(share, "rendering", len(share), team.rank)]
        everything = [item for items in team.exchange(painted) for item in items]
        with team.together(f"publishing part {part}"):
            if team.rank == 0:
                _commit(task, temporaries, _index(task, part, everything))


def cut(samples: range, edge: int, deepest: int, ranks: int) -> list[list[Slab]]:
    """Cut samples into slabs of at most ``deepest`` planes and share them out to ``ranks``, in order.

    Samples are cut no further than memory and idle ranks demand, since a cloud is read again for
    each slab.
    """
    wanted = max(-(-edge // deepest), -(-ranks // len(samples)))
    depth = -(-edge // min(wanted, edge))
    slabs = [Slab(sample, z, min(z + depth, edge)) for sample in samples for z in range(0, edge, depth)]
    bounds = [len(slabs) * rank // ranks for rank in range(ranks + 1)]
    return [slabs[low:high] for low, high in pairwise(bounds)]


@contextmanager
def _temporaries(task: _Task, team: Team) -> Iterator[list[Path]]:
    """Make a temporary file of full length for each array file; remove what is left of them at the end.

    All ranks write into the same ones; rank 0 makes and removes them.
    """
    temporaries = team.decide([atomic.temporary_path(file.path) for file in task.files])
    try:
        with team.together("making the files"):
            if team.rank == 0:
                _create(task, temporaries)
        yield temporaries
    finally:
        if team.rank == 0:
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)


def _create(task: _Task, temporaries: list[Path]) -> None:
    with atomic.refusals(task.folder):
        task.folder.mkdir(parents=True, exist_ok=True)
        atomic.remove_temporaries(task.folder)
        _require_space(task.folder, sum(file.size for file in task.files))
        for file, temporary in zip(task.files, temporaries, strict=True):
            with open(temporary, "wb") as stream:
                stream.write(file.header)
                stream.truncate(file.size)


def _commit(task: _Task, temporaries: list[Path], index: PartIndex) -> None:
    """Give the files their names; while the arrays change, no ``part.json`` vouches for them."""
    with atomic.refusals(task.folder):
        (task.folder / INDEX).unlink(missing_ok=True)
    for file, temporary in zip(task.files, temporaries, strict=True):
        atomic.commit(temporary, file.path)
    atomic.write_json(task.folder / INDEX, index.model_dump())


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WriteError(
            f"cannot write {folder}: it takes {needed / 1e9:.3f} GB and the file system has {free / 1e9:.3f} GB left;"
            " free some space, then run the same command again"
        )


@contextmanager
def _opened(task: _Task, temporaries: list[Path]) -> Iterator[list[int]]:
    """Open the temporary files; what this rank wrote to them is on disk at the end.

    Rank 0 syncs once more before it renames, but on a network file system that does not reach what
    other nodes still hold in their caches.
    """
    descriptors: list[int] = []
    try:
        with atomic.refusals(task.folder):
            for temporary in temporaries:
                descriptors.append(os.open(temporary, os.O_WRONLY))
        yield descriptors
        with atomic.refusals(task.folder):
            for descriptor in descriptors:
                os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _render(task: _Task, slab: Slab, descriptors: list[int]) -> _Painted:
    mask = np.zeros((slab.last - slab.first, *task.masks.shape[2:]), dtype=task.masks.dtype)
    _paint(mask, task, slab)
    with atomic.refusals(task.folder):
        return _write(mask, task, slab, descriptors)


def _paint(mask: NDArray[np.unsignedinteger], task: _Task, slab: Slab) -> None:
    """Paint the planes of ``slab`` of all fractals of its sample, in order, into the empty ``mask``."""
    for category, instance in task.plan.pairs[slab.sample].tolist():
        path = task.instances / f"{category}.npy"
        points = load_instance(path, instance)
        if len(points) != task.config.point_num:
            problem = f"has clouds of {len(points)} points instead of {task.config.point_num}"
            raise DamagedFileError(path, problem, rebuild_command(path))
        try:
            place = voxelize.frame(points, task.config.vol_size)
        except ValueError as error:
            raise DamagedFileError(path, f"has a bad instance {instance}: it {error}", rebuild_command(path)) from error
        voxelize.paint(mask, points, place, category + 1, slab.first)


def _write(mask: NDArray[np.unsignedinteger], task: _Task, slab: Slab, descriptors: list[int]) -> _Painted:
    """Write the mask of a slab, and with ``dense`` its image, a piece that fits the cache at a time."""
    row = slab.sample - task.samples.start
    channels = np.ascontiguousarray(task.plan.palette.T)
    digests: list[bytes] = []
    counts = np.zeros(len(task.plan.palette), dtype=np.int64)
    step = piece_planes(mask.shape[1])
    buffer = np.empty((step, *mask.shape[1:]), dtype=np.float32)
    for z in range(0, len(mask), step):
        piece = mask[z : z + step]
        digests += labels.plane_digests(piece)
        counts += labels.count(piece, len(counts))
        write_at(descriptors[-1], piece, task.masks.offset(row, slab.first + z))
        if len(task.files) == 1:
            continue
        for channel in range(CHANNELS):
            image = buffer[: len(piece)]
            labels.colour(piece, channels[channel], image)
            write_at(descriptors[0], image, task.files[0].offset(row, channel, slab.first + z))
    return _Painted(slab, digests, {int(label): int(counts[label]) for label in np.flatnonzero(counts)})


def _index(task: _Task, part: int, painted: list[_Painted]) -> PartIndex:
    """Put together what the ranks know of the slabs, which come in order of sample and depth."""
    entries = []
    for sample in task.samples:
        slabs = [item for item in painted if item.slab.sample == sample]
        present = sorted({label for item in slabs for label in item.voxels})
        entries.append(
            PartSample(
                id=sample,
                fractals=[tuple(pair) for pair in task.plan.pairs[sample].tolist()],
                digest=labels.sample_digest(digest for item in slabs for digest in item.digests),
                voxels={str(label): sum(item.voxels.get(label, 0) for item in slabs) for label in present},
            )
        )
    return PartIndex(
        format=PART_FORMAT,
        format_version=PART_FORMAT_VERSION,
        config_id=config_id(task.config),
        settings=dataset_settings(task.config),
        part=part,
        samples=entries,
        made_by=provenance.stamp(),
    )
