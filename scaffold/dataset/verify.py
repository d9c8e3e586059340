"""Reading every byte of a data set again, to find what has changed since it was made."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaffold.arrays import ArrayFile, read_into
from scaffold.dataset import labels
from scaffold.dataset.layout import INDEX, PARTS, part_directory
from scaffold.dataset.meta import META, Meta, load_meta, load_part
from scaffold.dataset.plan import CHANNELS
from scaffold.errors import DamagedFileError
from scaffold.progress import track

_PIECE_VOXELS = 2**20


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a data set.

    Attributes:
        path: the file.
        sample: the sample concerned; None when it is the whole file.
        problem: what is wrong, as a clause.
    """

    path: Path
    sample: int | None
    problem: str

    def __str__(self) -> str:
        where = "" if self.sample is None else f", sample {self.sample}"
        return f"{self.path}{where}: {self.problem}"


def verify(directory: Path, threads: int = 1) -> list[Finding]:
    """Check every file of the data set in ``directory`` against ``meta.yaml``, byte for byte.

    Masks are checked by digest; images by painting them again from their masks. A thread holds a few
    planes of one sample: 12 MB up to scale 10, 50 MB at scale 11.

    Args:
        directory: the data set.
        threads: parts that are read at the same time, at least 1.

    Returns:
        What is wrong, in order of part and sample; empty when all is well.

    Raises:
        UserError: ``directory`` is not a data set.
        DamagedFileError: its ``meta.yaml`` is damaged.
    """
    meta = load_meta(directory / META)
    parts = range(meta.layout.n_parts)
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda part: _part(meta, directory / PARTS, part), parts)
        return [finding for findings in track(found, "verifying parts", len(parts)) for finding in findings]


def _part(meta: Meta, parts: Path, part: int) -> list[Finding]:
    folder = part_directory(parts, part)
    findings = list(_check_index(meta, parts, part))
    sound = {}
    for file in meta.layout.arrays(folder, part):
        problem = file.header_problem()
        if problem is not None:
            findings.append(Finding(file.path, None, problem))
        sound[file.path] = problem is None
    masks, images = meta.layout.masks(folder, part), meta.layout.images(folder, part)
    if sound[masks.path]:
        for row, sample in enumerate(meta.layout.samples(part)):
            findings += _sample(meta, masks, images if sound.get(images.path) else None, sample, row)
    return findings


def _check_index(meta: Meta, parts: Path, part: int) -> Iterator[Finding]:
    path = part_directory(parts, part) / INDEX
    try:
        index = load_part(parts, part)
    except DamagedFileError as error:
        yield Finding(path, None, error.problem)
        return
    samples = meta.layout.samples(part)
    if index.config_id != meta.config_id or [entry.id for entry in index.samples] != list(samples):
        yield Finding(path, None, "belongs to another data set")
        return
    for entry in index.samples:
        if entry.digest != meta.sample_digests[entry.id]:
            yield Finding(path, entry.id, "has another digest than meta.yaml")


def _sample(meta: Meta, masks: ArrayFile, images: ArrayFile | None, sample: int, row: int) -> Iterator[Finding]:
    file = masks
    try:
        digests = [digest for piece in _planes(masks, row) for digest in labels.plane_digests(piece[1])]
        if labels.sample_digest(digests) != meta.sample_digests[sample]:
            unchecked = " (so its image could not be checked)" if images is not None else ""
            yield Finding(masks.path, sample, f"the mask's bytes were altered{unchecked}")
        elif images is not None:
            file = images
            if place := _first_difference(masks, images, row, meta.colours()):
                channel, depth = place
                yield Finding(images.path, sample, f"the image was altered, first in channel {channel}, plane {depth}")
    except OSError as error:
        yield Finding(file.path, sample, f"cannot be read ({error.strerror})")


def _first_difference(
    masks: ArrayFile, images: ArrayFile, row: int, palette: NDArray[np.float32]
) -> tuple[int, int] | None:
    """Return (channel, depth) of a plane of the image that is not its mask seen through ``palette``, or None."""
    channels = np.ascontiguousarray(palette.T)
    for first, piece in _planes(masks, row):
        wanted = np.empty(piece.shape, dtype=np.float32)
        for channel in range(CHANNELS):
            labels.colour(piece, channels[channel], wanted)
            found = _read(images, piece.shape, row, channel, first)
            # As integers, since 0.0 equals -0.0 and a NaN does not even equal itself.
            differ = (found.view(np.uint32) != wanted.view(np.uint32)).any(axis=(1, 2))
            if differ.any():
                return channel, first + int(differ.argmax())
    return None


def _planes(masks: ArrayFile, row: int) -> Iterator[tuple[int, NDArray[np.unsignedinteger]]]:
    """Yield (index of the first plane, planes) of a sample's mask, a few planes at a time."""
    edge = masks.shape[1]
    step = max(_PIECE_VOXELS // edge**2, 1)
    for first in range(0, edge, step):
        yield first, _read(masks, (min(step, edge - first), edge, edge), row, first)


def _read(file: ArrayFile, shape: tuple[int, ...], *index: int) -> NDArray[np.unsignedinteger]:
    content = np.empty(shape, dtype=file.dtype)
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        if read_into(descriptor, content, file.offset(*index)) != content.nbytes:
            raise OSError(errno.ENODATA, "it has become shorter while it was read")
    finally:
        os.close(descriptor)
    return content
