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
from scaffold.config import RunConfig, config_id
from scaffold.config.identity import dataset_settings
from scaffold.dataset import labels, voxelize
from scaffold.dataset.arrays import ArrayFile, write_at
from scaffold.dataset.layout import INDEX, Layout, rebuild_command
from scaffold.dataset.meta import PART_FORMAT, PART_FORMAT_VERSION, PartIndex, PartSample
from scaffold.dataset.plan import CHANNELS, Plan, make_plan
from scaffold.errors import DamagedFileError, UserError, WriteError
from scaffold.fractals.instances import load_instance
from scaffold.parallel.team import Team
from scaffold.progress import track

MEMORY = 4 * 2**30
"""Bytes that clouds, masks and buffers of one worker may take."""

_PIECE_VOXELS = 2**18
_BYTES_PER_POINT = 12
_SPARE_BYTES = 2**20


@dataclass(frozen=True)
class Slab:
    """Planes ``first`` to ``last - 1`` of ``sample``."""

    sample: int
    first: int
    last: int


@dataclass(frozen=True)
class _Painted:
    """What is known of a slab once it is written: a digest for each plane, and voxels of each label."""

    slab: Slab
    digests: list[bytes]
    voxels: dict[int, int]


def render_part(
    config: RunConfig, part: int, instances: Path, output: Path, team: Team, memory: int = MEMORY
) -> PartIndex:
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

    Returns:
        The content of ``part.json``.

    Raises:
        RankError: on every rank, with the cause: ``UserError`` (no such part, or too little memory
            for one plane), ``DamagedFileError`` (a cloud), or ``WriteError`` (disk full; nothing of
            the part is left).
    """
    layout, plan = Layout.of(config), make_plan(config)
    with team.together(f"preparing part {part}"):
        if part not in range(layout.n_parts):
            raise UserError(f"--part {part}: the data set has parts 0 to {layout.n_parts - 1}")
        samples = layout.samples(part)
        shares = cut(samples, layout.edge, deepest_slab(config, memory), team.size)
    files = layout.arrays(output, part)
    with _temporaries(files, team) as temporaries:
        with team.together(f"rendering part {part}"), _opened(temporaries) as descriptors:
            painted = _render(shares[team.rank], config, plan, instances, files, descriptors, samples.start, team)
        everything = [item for share in team.exchange(painted) for item in share]
        index = _index(config, part, samples, plan, everything)
        with team.together(f"publishing part {part}"):
            if team.rank == 0:
                (output / INDEX).unlink(missing_ok=True)
                for file, temporary in zip(files, temporaries, strict=True):
                    atomic.commit(temporary, file.path)
                atomic.write_json(output / INDEX, index.model_dump())
    return index


def deepest_slab(config: RunConfig, memory: int = MEMORY) -> int:
    """Return how many planes of a sample a worker renders at once within ``memory`` bytes.

    Raises:
        UserError: not even one.
    """
    mask_item = np.dtype(_mask_dtype(config)).itemsize
    fixed = config.point_num * _BYTES_PER_POINT + _piece_planes(config.vol_size) * config.vol_size**2 * 4 + _SPARE_BYTES
    planes = (memory - fixed) // (config.vol_size**2 * mask_item)
    if planes < 1:
        raise UserError(
            f"rendering at problem_scale {config.problem_scale} takes more than"
            f" {fixed + config.vol_size**2 * mask_item} bytes of memory; {memory} were allowed"
        )
    return min(planes, config.vol_size)


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


def _mask_dtype(config: RunConfig) -> str:
    return Layout.of(config).masks(Path(), 0).dtype


def _piece_planes(edge: int) -> int:
    return max(_PIECE_VOXELS // edge**2, 1)


@contextmanager
def _temporaries(files: list[ArrayFile], team: Team) -> Iterator[list[Path]]:
    """Make a temporary file of full length with its header for each of ``files``; remove what is left at the end.

    All ranks write into the same ones; rank 0 makes and removes them.
    """
    temporaries = team.decide([atomic.temporary_path(file.path) for file in files])
    try:
        with team.together("making the files"):
            if team.rank == 0:
                _create(files, temporaries)
        yield temporaries
    finally:
        if team.rank == 0:
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)


def _create(files: list[ArrayFile], temporaries: list[Path]) -> None:
    folder = files[0].path.parent
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        atomic.remove_temporaries(folder)
        _require_space(folder, sum(file.size for file in files))
        for file, temporary in zip(files, temporaries, strict=True):
            with open(temporary, "wb") as stream:
                stream.write(file.header)
                stream.truncate(file.size)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise atomic.write_error(folder, error) from error


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WriteError(
            f"cannot write {folder}: it takes {needed / 1e9:.3f} GB and the file system has {free / 1e9:.3f} GB left;"
            " free some space, then run the same command again"
        )


@contextmanager
def _opened(temporaries: list[Path]) -> Iterator[list[int]]:
    """Open the temporary files; what this rank wrote to them is on disk at the end.

    Rank 0 syncs once more before it renames, but on a network file system that does not reach what
    other nodes still hold in their caches.
    """
    descriptors: list[int] = []
    try:
        with _writing(temporaries[0].parent):
            descriptors += [os.open(temporary, os.O_WRONLY) for temporary in temporaries]
        yield descriptors
        with _writing(temporaries[0].parent):
            for descriptor in descriptors:
                os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _render(
    slabs: list[Slab],
    config: RunConfig,
    plan: Plan,
    instances: Path,
    files: list[ArrayFile],
    descriptors: list[int],
    first_sample: int,
    team: Team,
) -> list[_Painted]:
    painted = []
    deepest = max((slab.last - slab.first for slab in slabs), default=0)
    room = np.empty((deepest, config.vol_size, config.vol_size), dtype=_mask_dtype(config))
    for slab in track(slabs, "rendering", len(slabs), team.rank):
        mask = room[: slab.last - slab.first]
        _paint(mask, slab, config, plan, instances)
        with _writing(files[0].path.parent):
            digests, counts = _write(mask, slab.sample - first_sample, slab.first, plan.palette, files, descriptors)
        present = {int(label): int(counts[label]) for label in np.flatnonzero(counts)}
        painted.append(_Painted(slab, digests, present))
    return painted


def _paint(mask: NDArray[np.unsignedinteger], slab: Slab, config: RunConfig, plan: Plan, instances: Path) -> None:
    mask.fill(0)
    for category, instance in plan.pairs[slab.sample].tolist():
        path = instances / f"{category}.npy"
        points = load_instance(path, instance)
        try:
            place = voxelize.frame(points, config.vol_size)
        except ValueError as error:
            raise DamagedFileError(path, f"instance {instance} {error}", rebuild_command(path)) from error
        voxelize.paint(mask, points, place, category + 1, slab.first)


def _write(
    mask: NDArray[np.unsignedinteger],
    row: int,
    first: int,
    palette: NDArray[np.float32],
    files: list[ArrayFile],
    descriptors: list[int],
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Write a slab's mask, and with ``dense`` its image; return its plane digests and voxel counts."""
    digests: list[bytes] = []
    counts = np.zeros(len(palette), dtype=np.int64)
    channels = np.ascontiguousarray(palette.T)
    step = _piece_planes(mask.shape[1])
    buffer = np.empty((step, *mask.shape[1:]), dtype=np.float32)
    for z in range(0, len(mask), step):
        piece = mask[z : z + step]
        digests += labels.plane_digests(piece)
        counts += labels.count(piece, len(palette))
        write_at(descriptors[-1], piece, files[-1].offset(row, first + z))
        if len(files) == 1:
            continue
        for channel in range(CHANNELS):
            image = buffer[: len(piece)]
            labels.colour(piece, channels[channel], image)
            write_at(descriptors[0], image, files[0].offset(row, channel, first + z))
    return digests, counts


def _index(config: RunConfig, part: int, samples: range, plan: Plan, painted: list[_Painted]) -> PartIndex:
    """Put together what the ranks know of the slabs, which come in order of sample and depth."""
    entries = []
    for sample in samples:
        slabs = [item for item in painted if item.slab.sample == sample]
        present = sorted({label for item in slabs for label in item.voxels})
        entries.append(
            PartSample(
                id=sample,
                fractals=[tuple(pair) for pair in plan.pairs[sample].tolist()],
                digest=labels.sample_digest(digest for item in slabs for digest in item.digests),
                voxels={str(label): sum(item.voxels.get(label, 0) for item in slabs) for label in present},
            )
        )
    return PartIndex(
        format=PART_FORMAT,
        format_version=PART_FORMAT_VERSION,
        config_id=config_id(config),
        settings=dataset_settings(config),
        part=part,
        samples=entries,
        made_by=provenance.stamp(),
    )
