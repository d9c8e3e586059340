"""Where the bytes of each sample lie: the parts of a data set and their files.

A data set is ``meta.yaml`` and ``parts/NNNN/``; a part holds a fixed number of consecutive samples,
the last one perhaps fewer:

* ``images.npy``, (n, 3, D, H, W) float32, with ``storage.image: dense`` only;
* ``masks.npy``, (n, D, H, W) labels, uint16 with ``dense`` and uint8 with ``labels``;
* ``part.json``, their index, written last.

All extents are equal. Parts keep the number of files small, which parallel file systems need, and
let Snakemake watch each file by name. How many samples a part has follows from the settings alone,
so a data set has the same bytes whatever made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scaffold.arrays import ArrayFile
from scaffold.config import RunConfig
from scaffold.dataset.plan import CHANNELS

Split = Literal["training", "validation"]
StorageKind = Literal["dense", "labels"]

MASK_DTYPES: dict[StorageKind, str] = {"dense": "<u2", "labels": "|u1"}
PARTS = "parts"
INDEX = "part.json"


@dataclass(frozen=True)
class Layout:
    """The numbers that fix where each sample's bytes are.

    Attributes:
        n_samples: samples of the data set, both splits.
        samples_per_part: samples of each part but the last.
        edge: extent of a sample along each axis, voxels.
        image: how samples are stored.
    """

    n_samples: int
    samples_per_part: int
    edge: int
    image: StorageKind

    @classmethod
    def of(cls, config: RunConfig) -> Layout:
        """Return the layout of the data set that ``config`` defines."""
        return cls(config.n_volumes, config.volumes_per_part, config.vol_size, config.storage.image)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-self.n_samples // self.samples_per_part)

    def samples(self, part: int) -> range:
        """Return the samples of ``part``."""
        first = part * self.samples_per_part
        return range(first, min(first + self.samples_per_part, self.n_samples))

    def find(self, sample: int) -> tuple[int, int]:
        """Return (part, row within the part) of ``sample``."""
        return divmod(sample, self.samples_per_part)

    def images(self, directory: Path, part: int) -> ArrayFile:
        """Return the image file of ``part``, whose files are in ``directory``."""
        extents = (self.edge,) * 3
        return ArrayFile(directory / "images.npy", (len(self.samples(part)), CHANNELS, *extents), "<f4")

    def masks(self, directory: Path, part: int) -> ArrayFile:
        """Return the mask file of ``part``, whose files are in ``directory``."""
        extents = (self.edge,) * 3
        return ArrayFile(directory / "masks.npy", (len(self.samples(part)), *extents), MASK_DTYPES[self.image])

    def arrays(self, directory: Path, part: int) -> list[ArrayFile]:
        """Return all array files of ``part``, whose files are in ``directory``."""
        masks = self.masks(directory, part)
        return [self.images(directory, part), masks] if self.image == "dense" else [masks]


def part_directory(parts: Path, part: int) -> Path:
    """Return the folder of ``part`` below ``parts``."""
    return parts / f"{part:04d}"
