"""Samples for training: reading a block of each from the files of a data set.

A rank that trains on a block of every sample reads no more than that block's rows. Files are opened
for one read and closed: nothing is kept that a loader process would have to inherit, or that a data
set of thousands of parts would run out of.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from scaffold.arrays import ArrayFile, read_into
from scaffold.dataset.layout import PARTS, Split, part_directory
from scaffold.dataset.meta import load_meta
from scaffold.dataset.plan import CHANNELS
from scaffold.errors import DamagedFileError, UserError
from scaffold.remedy import rebuild_command

Block = tuple[slice, slice, slice]
_Bounds = tuple[tuple[int, int], ...]


class Item(TypedDict):
    """One sample, or the block of it that was asked for: contiguous CPU tensors."""

    image: NotRequired[torch.Tensor]
    """(3, d, h, w) float32, as stored; only with ``storage.image: dense``."""
    mask: torch.Tensor
    """(d, h, w) labels, int16 with ``dense`` and uint8 with ``labels``."""


class Samples(Dataset[Item]):
    """The samples of one split, ascending by number.

    Args:
        meta: the data set's ``meta.yaml``.
        split: which samples.
        block: the part of each sample to read, a slice along each of D, H and W; None for all of it.

    Attributes:
        meta: content of ``meta.yaml``.
        palette: colour of each label, (n_classes, 3) float32.
        n_classes: labels, the background included.
        shape: extents (d, h, w) of the items.

    Raises:
        UserError: there is no data set, or ``block`` is empty or reaches beyond the samples.
        DamagedFileError: ``meta.yaml`` is damaged, or an array file is missing or of the wrong size;
            the message has the command that rebuilds it.
    """

    def __init__(self, meta: str | os.PathLike[str], split: Split, block: Block | None = None) -> None:
        self.meta = load_meta(Path(meta))
        self.palette = torch.from_numpy(self.meta.colours())
        self.n_classes = self.meta.n_classes
        self._parts = Path(meta).parent / PARTS
        self._split = split
        self._ids = self.meta.samples(split)
        self._bounds = _bounds(block or (slice(None),) * 3, self.meta.edge)
        self.shape = tuple(stop - start for start, stop in self._bounds)
        for part in sorted({self.meta.layout.find(sample)[0] for sample in self._ids}):
            for file in self.meta.layout.arrays(part_directory(self._parts, part), part):
                if problem := file.size_problem():
                    raise _damaged(file, problem)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Item:
        mask = self.mask(index)
        if self.meta.image == "labels":
            return {"mask": mask}
        folder, part, row = self._locate(index)
        image = self._read(self.meta.layout.images(folder, part), row, CHANNELS)
        return {"image": torch.from_numpy(image), "mask": mask}

    def mask(self, index: int) -> torch.Tensor:
        """Return the mask of an item alone, (d, h, w) int16 or uint8; its image is not read."""
        folder, part, row = self._locate(index)
        file = self.meta.layout.masks(folder, part)
        mask = self._read(file, row, 1)[0]
        if mask.max() >= self.n_classes:
            # Such a label would wrap in int16, and index past the end of the class weights.
            raise _damaged(
                file, f"has label {mask.max()} in sample {self.sample_id(index)}, of {self.n_classes} classes"
            )
        return torch.from_numpy(mask.view(np.int16) if mask.dtype == np.uint16 else mask)

    def sample_id(self, index: int) -> int:
        """Return the number of an item within the data set."""
        return self._ids[index]

    def ids_digest(self) -> str:
        """Return a digest of the data set and of which samples these are, for ranks to compare."""
        text = f"{self.meta.digest}/{self._split}/{self._ids}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _locate(self, index: int) -> tuple[Path, int, int]:
        part, row = self.meta.layout.find(self.sample_id(index))
        return part_directory(self._parts, part), part, row

    def _read(self, file: ArrayFile, row: int, channels: int) -> NDArray[np.generic]:
        """Return the block of one sample, (channels, d, h, w)."""
        out = np.empty((channels, *self.shape), dtype=file.dtype)
        try:
            descriptor = os.open(file.path, os.O_RDONLY)
            try:
                _read_block(descriptor, file, row, self._bounds, out)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _damaged(file, f"cannot be read ({error.strerror})") from error
        except EOFError as error:
            raise _damaged(file, "is truncated: it ends within a sample") from error
        return out


def colour(mask: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    """Return the images of a batch of masks, bitwise what ``storage.image: dense`` stores.

    Args:
        mask: (N, D, H, W) labels of any integer type, on any device.
        palette: (n_classes, 3) float32 on the same device.

    Returns:
        (N, 3, D, H, W) float32 in the memory format ``torch.channels_last_3d``: a lookup of whole
        colours gives just that order, so that a channels-last model takes it without a copy.
    """
    return torch.nn.functional.embedding(mask.to(torch.int32), palette).permute(0, 4, 1, 2, 3)


def _read_block(descriptor: int, file: ArrayFile, row: int, bounds: _Bounds, out: NDArray[np.generic]) -> None:
    """Fill ``out``, (channels, d, h, w), with the block ``bounds`` of one sample.

    The fewest reads of which each is one contiguous range: one for a whole sample, one a channel where
    whole planes are wanted, else one a channel and plane, of whole rows.

    Raises:
        EOFError: the file ends before.
    """
    edge = file.shape[-1]
    (top, _), height, width = bounds

    def read(buffer: NDArray[np.generic], *index: int) -> None:
        if read_into(descriptor, buffer, file.offset(*index)) != buffer.nbytes:
            raise EOFError

    if bounds == ((0, edge),) * 3:
        read(out, row)
        return
    rows = np.empty((height[1] - height[0], edge), dtype=out.dtype)
    for channel, volume in enumerate(out):
        # A mask file has no axis for channels.
        index = (row, channel)[: len(file.shape) - 3]
        if height == width == (0, edge):
            read(volume, *index, top)
            continue
        for depth, plane in enumerate(volume, start=top):
            if width == (0, edge):
                read(plane, *index, depth, height[0])
            else:
                read(rows, *index, depth, height[0])
                plane[...] = rows[:, slice(*width)]


def _bounds(block: Block | tuple[slice, ...], edge: int) -> _Bounds:
    bounds = []
    for axis, cut in zip("DHW", block, strict=True):
        start = 0 if cut.start is None else cut.start
        stop = edge if cut.stop is None else cut.stop
        if not 0 <= start < stop <= edge or cut.step not in (None, 1):
            raise UserError(f"the block {start}:{stop} along {axis} is not a non-empty run within 0:{edge}")
        bounds.append((start, stop))
    return tuple(bounds)


def _damaged(file: ArrayFile, problem: str) -> DamagedFileError:
    return DamagedFileError(file.path, problem, rebuild_command(file.path))
