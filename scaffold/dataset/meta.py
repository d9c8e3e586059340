"""The two descriptions of a data set: ``meta.yaml`` of the whole, ``part.json`` of each part.

A folder is a data set if and only if it has a ``meta.yaml``, which is written last. A ``meta.yaml``
that is there but cannot be understood is an error, never an older format.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scaffold.dataset.layout import INDEX, Layout, Split, StorageKind, part_directory
from scaffold.errors import DamagedFileError, UserError
from scaffold.remedy import rebuild_command

META = "meta.yaml"
FORMAT: Literal["scaffold-dataset"] = "scaffold-dataset"
FORMAT_VERSION: Literal[1001] = 1001
"""Far above LLNL's versions (1 to 5), so that neither project's loader takes the other's data for its own."""
PART_FORMAT: Literal["scaffold-part"] = "scaffold-part"
PART_FORMAT_VERSION: Literal[1] = 1

_LLNL = (
    "is not read: import its categories (scaffold import-library) or its configuration (scaffold import-config)"
    " and generate the data here"
)

_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PartSample(_Strict):
    """One sample in ``part.json``.

    Attributes:
        id: number of the sample within the data set.
        fractals: (category, instance) of each fractal, in the order of painting.
        digest: see :func:`scaffold.dataset.labels.sample_digest`.
        voxels: how many voxels each label has that occurs, by label.
    """

    id: int
    fractals: list[tuple[int, int]]
    digest: str
    voxels: dict[str, int]


class PartIndex(_Strict):
    """Content of ``part.json``.

    Attributes:
        config_id: of the data set that the part belongs to.
        settings: what defines that data set.
        part: number of the part.
        samples: its samples, in the order of the array files.
        made_by: provenance.
    """

    format: Literal["scaffold-part"]
    format_version: Literal[1]
    config_id: str
    settings: dict[str, Any]
    part: int
    samples: list[PartSample]
    made_by: dict[str, Any]


class Splits(_Strict):
    """The samples of each split, ascending."""

    training: list[int]
    validation: list[int]


class Meta(_Strict):
    """Content of ``meta.yaml``.

    Attributes:
        config_id: digest of ``settings``.
        digest: digest of everything that a training sees: geometry, palette, splits and all samples.
            Equal digests mean that two sites trained on the same bytes.
        created_at: when the newest part was made, UTC.
        code_commit: commits of the code that made the parts, comma-separated if there are several.
        settings: the keys and code versions that define the data.
        edge: extent of a sample along D, H and W.
        image: how samples are stored.
        voxels: voxels of each label over all samples; label 0 is the background, label c + 1 category c.
        palette: red, green and blue of each label, exact float32 values.
        splits: which samples train and which validate.
        sample_digests: digest of each sample, in order.
    """

    format: Literal["scaffold-dataset"]
    dataset_format_version: Literal[1001]
    config_id: str
    digest: str
    created_at: str
    code_commit: str
    settings: dict[str, Any]
    image: StorageKind
    edge: int = Field(ge=1)
    n_training: int
    n_validation: int
    samples_per_part: int = Field(ge=1)
    voxels: list[int]
    palette: list[list[float]]
    splits: Splits
    sample_digests: list[str]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if [len(self.splits.training), len(self.splits.validation)] != [self.n_training, self.n_validation]:
            raise ValueError("splits do not have n_training and n_validation samples")
        if sorted(self.splits.training + self.splits.validation) != list(range(len(self.sample_digests))):
            raise ValueError("splits do not hold each sample once")
        if any(len(colour) != 3 for colour in self.palette) or len(self.voxels) != len(self.palette):
            raise ValueError("palette and voxels do not describe the same labels")
        if self.digest != self.content_digest():
            raise ValueError("digest does not fit the content: the file was altered")
        return self

    def content_digest(self) -> str:
        """Return what :attr:`digest` must be, a SHA-256 in hex; independent of how samples are put into parts."""
        content = {
            "version": self.dataset_format_version,
            "image": self.image,
            "edge": self.edge,
            "palette": self.palette,
            "splits": self.splits.model_dump(),
            "samples": self.sample_digests,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def layout(self) -> Layout:
        """Where the samples' bytes are."""
        return Layout(len(self.sample_digests), self.samples_per_part, self.edge, self.image)

    @property
    def n_classes(self) -> int:
        """Labels, the background included."""
        return len(self.palette)

    def samples(self, split: Split) -> list[int]:
        """Return the samples of ``split``, ascending."""
        return self.splits.training if split == "training" else self.splits.validation

    def colours(self) -> NDArray[np.float32]:
        """Return the palette, (n_classes, 3) float32."""
        return np.array(self.palette, dtype=np.float32)


def load_meta(path: Path) -> Meta:
    """Read ``meta.yaml``.

    Raises:
        UserError: there is none, so the folder is no data set; or the data set is LLNL's, or of
            another version.
        DamagedFileError: it is there and cannot be understood.
    """
    try:
        content = yaml.load(path.read_bytes(), _Loader)  # noqa: S506 - a safe loader
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(_not_a_data_set(path)) from error
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _damaged(path, "is not valid YAML") from error
    if not isinstance(content, dict):
        raise _damaged(path, "is empty" if content is None else "is not a mapping")
    version = content.get("dataset_format_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise _damaged(path, "has no integer dataset_format_version")
    if "format" not in content and 1 <= version <= 5:
        raise UserError(f"{path} describes an LLNL ScaFFold data set (format {version}), which {_LLNL}")
    if content.get("format") == FORMAT and version != FORMAT_VERSION:
        raise UserError(
            f"{path} is of format {version}, made by another version of Scaffold; this one reads {FORMAT_VERSION}."
            f" Make it anew with: {rebuild_command(path)}"
        )
    try:
        return Meta.model_validate(content)
    except ValidationError as error:
        raise _damaged(path, _first(error)) from error


def load_part(parts: Path, part: int) -> PartIndex:
    """Read the ``part.json`` of ``part`` below the folder ``parts``.

    Raises:
        DamagedFileError: it is missing or cannot be understood.
    """
    path = part_directory(parts, part) / INDEX
    try:
        return PartIndex.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise _damaged(path, "is missing") from error
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise _damaged(path, _first(error)) from error


def _not_a_data_set(path: Path) -> str:
    folder = path.parent
    if (folder / "volumes").is_dir() and (folder / "masks").is_dir():
        return f"{folder} has no {path.name} but the folders of an LLNL ScaFFold data set, which {_LLNL}"
    return f"{folder} is not a data set: it has no {path.name}; make it with: {rebuild_command(path)}"


def _damaged(path: Path, problem: str) -> DamagedFileError:
    return DamagedFileError(path, problem, rebuild_command(path))


def _first(error: ValidationError) -> str:
    item = error.errors()[0]
    where = ".".join(str(name) for name in item["loc"])
    return f"cannot be understood: {where + ': ' if where else ''}{item['msg']}"
