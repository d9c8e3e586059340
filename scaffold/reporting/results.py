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
from typing import NoReturn, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from scaffold.errors import DamagedFileError, UserError
from scaffold.records import COLUMNS, Result
from scaffold.remedy import rebuild_command

_NEVER_EMPTY = tuple(name for name in COLUMNS if name != "minibatch_duration")
_SUM_TOLERANCE = 1e-9

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Training:
    """One training as it was published: its folder, its result, and one row of ``stats`` per epoch."""

    directory: Path
    result: Result
    stats: pd.DataFrame


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


def raise_damaged(path: Path, problem: str, cause: BaseException | None = None) -> NoReturn:
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
        raise_damaged(path, f"cannot be read: {error.strerror}", error)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        detail = f"{where}: {first['msg']}" if where else "it is truncated or not JSON"
        raise_damaged(path, f"is not a valid {path.name} ({detail})", error)


def read_result(directory: Path) -> Result:
    """Return the result of :func:`read_training`."""
    return read_training(directory).result


def read_training(directory: Path) -> Training:
    """Read ``result.json`` and ``train_stats.csv`` of the training in ``directory``; hold one against the other.

    Raises:
        UserError: the settings let no epoch be trained.
        DamagedFileError: a file is missing or damaged, or the two are not of the same training.
    """
    path = directory / "result.json"
    result = read_record(path, Result)
    try:
        known = result.settings
    except ValidationError as error:
        raise_damaged(path, f"has settings that this version does not know ({error.errors()[0]['loc']})", error)
    if result.epochs == 0:
        raise UserError(
            f"{path}: no epoch was trained (epochs is {known.epochs}, target_dice {known.target_dice:g}),"
            " so there is nothing to report"
        )
    if result.world.ranks != result.ranks:
        raise_damaged(path, f"is contradictory: trained on {result.world.ranks} ranks, published as {result.ranks}")
    if result.converged != (result.val_dice >= known.target_dice):
        raise_damaged(path, f"is contradictory: converged is {result.converged} at val_dice {result.val_dice}")
    stats = read_stats(directory / "train_stats.csv")
    for name, told, summed in (
        ("epochs", result.epochs, len(stats)),
        ("epoch_time_s", result.epoch_time_s, stats.epoch_duration.sum()),
        ("checkpoint_stall_s", result.checkpoint_stall_s, stats.checkpoint_stall.sum()),
        ("total_optimizer_steps", result.total_optimizer_steps, stats.total_optimizer_steps.iloc[-1]),
        ("val_dice", result.val_dice, stats.val_dice.iloc[-1]),
    ):
        if not math.isclose(told, summed, rel_tol=_SUM_TOLERANCE):
            raise_damaged(path, f"does not belong to its train_stats.csv: {name} is {told}, there it is {summed}")
    return Training(directory, result, stats)


def read_stats(path: Path) -> pd.DataFrame:
    """Read ``train_stats.csv``: one row per epoch, 1, 2, ... without a gap.

    Raises:
        DamagedFileError: missing, no row, a half-written row, a missing column, epochs out of order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise_damaged(path, f"cannot be read: {getattr(error, 'strerror', None) or error}", error)
    if not text.endswith("\n"):
        raise_damaged(path, "is truncated: its last line has no end")
    try:
        # By way of text: pandas' own parser of numbers may miss the last bit.
        cells = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        stats = cells.map(lambda cell: float(cell) if cell else math.nan)
    except (ValueError, TypeError) as error:
        raise_damaged(path, f"is not a table of numbers: {error}", error)
    missing = [name for name in COLUMNS if name not in stats.columns]
    if missing:
        raise_damaged(path, f"lacks the column {missing[0]}")
    if stats.empty:
        raise_damaged(path, "has no row: no epoch was trained")
    if not np.isfinite(stats[list(_NEVER_EMPTY)].to_numpy()).all():
        raise_damaged(path, "has an empty or non-finite value")
    if not (stats[["epoch_duration", "train_duration"]] > 0).all(axis=None):
        raise_damaged(path, "has an epoch that took no time")
    if not np.array_equal(stats.epoch, np.arange(1, len(stats) + 1)):
        raise_damaged(path, "does not list the epochs 1, 2, ... in order")
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
        raise_damaged(path, f"cannot be read: {error}", error)
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
            raise_damaged(path, f"is inconsistent: {name} has the shape {getattr(found, name).shape}")
    if max(found.truth.max(), found.prediction.max()) >= len(found.palette):
        raise_damaged(path, f"has a label beyond its palette of {len(found.palette)} colours")
    return found
