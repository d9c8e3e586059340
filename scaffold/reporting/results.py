"""Reading what one training published: ``result.json``, ``train_stats.csv`` and ``predictions.npz``.

Each file is checked when it is read, so that a damaged one is named with the command that makes it
again, instead of ending in a figure of merit that is wrong.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaffold.config import RunConfig
from scaffold.errors import DamagedFileError, UserError

LLNL_COLUMNS = (
    "epoch", "epoch_loss", "overall_loss", "val_loss_epoch", "val_loss_avg", "train_dice", "val_dice",
    "epoch_duration", "optimizer_steps", "total_optimizer_steps",
)  # fmt: skip
"""The columns of LLNL's ``train_stats.csv``, in its order."""

OUR_COLUMNS = (
    "learning_rate", "train_duration", "val_duration", "data_duration", "checkpoint_stall", "minibatch_duration",
)  # fmt: skip
"""The columns that follow; durations in seconds, ``minibatch_duration`` empty where it was not measured."""

_NEVER_EMPTY = (*LLNL_COLUMNS, *OUR_COLUMNS[:-1])
_SUM_TOLERANCE = 1e-9

_Seconds = Annotated[float, Field(ge=0)]
_Model = TypeVar("_Model", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class DatasetStamp(_Record):
    """Which data a training read.

    Attributes:
        name: the data set's folder.
        config_id: digest of its settings.
        digest: digest of its bytes; equal digests are equal data.
    """

    name: str
    config_id: str
    digest: str


class World(_Record):
    """What a training ran on. ``hosts`` is the number of machines, ``threads`` is per rank."""

    ranks: int
    hosts: int
    backend: str
    device: str
    threads: int
    mpi_library: str | None = None
    launcher: str | None = None


class Attempt(_Record):
    """One process of a training: the first, or one that resumed it after a kill or a time limit.

    Attributes:
        reason: why it ended; None for the one that published while it was still running.
        first_epoch: the first epoch that it trained, 1-based; None if it was stopped before.
    """

    reason: str | None = None
    first_epoch: int | None = None


class Result(_Record):
    """The content of ``result.json`` that reports use. Times are wall time in seconds.

    Attributes:
        epoch_time_s: sum of ``epoch_duration``: what LLNL's figure of merit is the reciprocal of.
        checkpoint_stall_s: how long checkpoints held the training loop up.
        time_to_target_s: the sum of the two; None unless converged.
        minibatch_time_s: median step time, slowest rank; None where it was not measured.
        warmup_s: of the last attempt that trained; None if it published only.
        lost_s: wall time of work that a kill undid and a later attempt did again.
    """

    format_version: Annotated[int, Field(ge=1, le=1)]
    run: str
    ranks: int
    seed: int
    config: dict[str, Any]
    must_match: dict[str, Any]
    training_identity: str
    dataset: DatasetStamp
    converged: bool
    epochs: Annotated[int, Field(ge=0)]
    val_dice: float
    val_loss_avg: float | None
    epoch_time_s: _Seconds
    checkpoint_stall_s: _Seconds
    time_to_target_s: _Seconds | None
    minibatch_time_s: _Seconds | None
    total_optimizer_steps: int
    lost_s: _Seconds
    warmup_s: _Seconds | None
    attempts: Annotated[list[Attempt], Field(min_length=1)]
    parameters: int
    world: World
    provenance: dict[str, Any]

    @property
    def settings(self) -> RunConfig:
        """The settings of the training, typed."""
        return RunConfig.model_validate(self.config)

    @property
    def commit(self) -> str:
        """The commit of the source tree that trained."""
        return str(self.provenance.get("commit", "unknown"))

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step over all ranks."""
        settings = self.settings
        return settings.local_batch_size * self.ranks // settings.total_shards

    @property
    def resumed_at(self) -> list[int]:
        """The epochs at which attempts after the first began, ascending."""
        starts = {attempt.first_epoch for attempt in self.attempts[1:] if attempt.first_epoch is not None}
        return sorted(epoch for epoch in starts if epoch <= self.epochs)


@dataclass(frozen=True)
class Predictions:
    """A few validation slices and what the trained network makes of them.

    Attributes:
        image: (n, 3, h, w) float32.
        truth: (n, h, w) int16, label of each pixel; 0 is background, k + 1 is category k.
        prediction: (n, h, w) int16.
        sample_id: (n,) numbers of the samples in the data set.
        depth: (n,) plane of the volume that the slice is.
        dice: (n,) hard foreground Dice of the whole volume.
        palette: (C, 3) colour of each label.
    """

    image: NDArray[np.float32]
    truth: NDArray[np.int16]
    prediction: NDArray[np.int16]
    sample_id: NDArray[np.int64]
    depth: NDArray[np.int64]
    dice: NDArray[np.float64]
    palette: NDArray[np.float32]


def rebuild_command(path: Path) -> str:
    """Return the command that makes the workflow's file ``path`` again."""
    return f"snakemake --profile profiles/local --force {path}"


def damaged(path: Path, problem: str, cause: BaseException | None = None) -> NoReturn:
    """Raise the error that says that ``path`` cannot be used and how to make it again."""
    raise DamagedFileError(path, problem, rebuild_command(path)) from cause


def read_record(path: Path, model: type[_Model]) -> _Model:
    """Read a JSON file into ``model``.

    Raises:
        DamagedFileError: the file is missing, truncated, not JSON or lacks a field; it is named.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        damaged(path, f"cannot be read: {error.strerror}", error)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        detail = f"{where}: {first['msg']}" if where else "it is truncated or not JSON"
        damaged(path, f"is not a valid {path.name} ({detail})", error)


def read_result(directory: Path) -> Result:
    """Read ``result.json`` of the training in ``directory`` and hold it against ``train_stats.csv``.

    Raises:
        UserError: the settings let no epoch be trained.
        DamagedFileError: a file is missing or damaged, or the two are not of the same training.
    """
    path = directory / "result.json"
    result = read_record(path, Result)
    try:
        known = result.settings
    except ValidationError as error:
        damaged(path, f"has settings that this version does not know ({error.errors()[0]['loc']})", error)
    if result.epochs == 0:
        raise UserError(
            f"{path}: no epoch was trained (epochs is {known.epochs}, target_dice {known.target_dice:g}),"
            " so there is nothing to report"
        )
    if result.world.ranks != result.ranks:
        damaged(path, f"is contradictory: trained on {result.world.ranks} ranks, published as {result.ranks}")
    if result.converged != (result.val_dice >= known.target_dice):
        damaged(path, f"is contradictory: converged is {result.converged} at val_dice {result.val_dice}")
    stats = read_stats(directory / "train_stats.csv")
    for name, told, summed in (
        ("epochs", result.epochs, len(stats)),
        ("epoch_time_s", result.epoch_time_s, stats.epoch_duration.sum()),
        ("total_optimizer_steps", result.total_optimizer_steps, stats.total_optimizer_steps.iloc[-1]),
        ("val_dice", result.val_dice, stats.val_dice.iloc[-1]),
    ):
        if not math.isclose(told, summed, rel_tol=_SUM_TOLERANCE):
            damaged(path, f"does not belong to its train_stats.csv: {name} is {told}, there it is {summed}")
    return result


def read_stats(path: Path) -> pd.DataFrame:
    """Read ``train_stats.csv``: one row per epoch, 1, 2, ... without a gap.

    Raises:
        DamagedFileError: missing, no row, a half-written row, a missing column, epochs out of order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        damaged(path, f"cannot be read: {getattr(error, 'strerror', None) or error}", error)
    if not text.endswith("\n"):
        damaged(path, "is truncated: its last line has no end")
    try:
        # By way of text: pandas' own parser of numbers may miss the last bit.
        cells = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        stats = cells.map(lambda cell: float(cell) if cell else math.nan)
    except (ValueError, TypeError) as error:
        damaged(path, f"is not a table of numbers: {error}", error)
    missing = [name for name in (*LLNL_COLUMNS, *OUR_COLUMNS) if name not in stats.columns]
    if missing:
        damaged(path, f"lacks the column {missing[0]}")
    if stats.empty:
        damaged(path, "has no row: no epoch was trained")
    if not np.isfinite(stats[list(_NEVER_EMPTY)].to_numpy()).all():
        damaged(path, "has an empty or non-finite value")
    if not (stats[["epoch_duration", "train_duration"]] > 0).all(axis=None):
        damaged(path, "has an epoch that took no time")
    if not np.array_equal(stats.epoch, np.arange(1, len(stats) + 1)):
        damaged(path, "does not list the epochs 1, 2, ... in order")
    whole = ["epoch", "optimizer_steps", "total_optimizer_steps"]
    return stats.astype(dict.fromkeys(whole, np.int64))


def read_predictions(path: Path) -> Predictions:
    """Read ``predictions.npz``; never unpickles.

    Raises:
        DamagedFileError: missing, truncated, or arrays whose shapes do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = Predictions(**{name: file[name] for name in Predictions.__dataclass_fields__})
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        damaged(path, f"cannot be read: {error}", error)
    n, *plane = found.truth.shape
    shapes = {
        "image": (n, 3, *plane),
        "prediction": (n, *plane),
        "sample_id": (n,),
        "depth": (n,),
        "dice": (n,),
        "palette": (len(found.palette), 3),
    }
    for name, shape in shapes.items():
        if getattr(found, name).shape != shape or not n:
            damaged(path, f"is inconsistent: {name} has the shape {getattr(found, name).shape}")
    if max(found.truth.max(), found.prediction.max()) >= len(found.palette):
        damaged(path, f"has a label beyond its palette of {len(found.palette)} colours")
    return found
