"""LLNL's libraries: a folder of ``NNNNNN.csv``, one a category.

Each file has two rows of 13 comma-separated numbers and no header: matrix row-major (9), translation
(3), probability. Categories are in the order of the file names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaffold import atomic
from scaffold.errors import UserError
from scaffold.fractals.categories import Library, check_system
from scaffold.fractals.ifs import MAPS, PARAMETERS


def read_folder(folder: Path) -> Library:
    """Read every ``*.csv`` of ``folder`` as a category.

    Raises:
        UserError: there is none, or one is not a category; names file and line.
    """
    files = sorted(folder.glob("*.csv"), key=lambda file: file.name)
    if not files:
        what = "holds no NNNNNN.csv" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {what}; give the folder of an LLNL library, with one file a category")
    return Library(
        np.array([read_system(file) for file in files]),
        [-1] * len(files),
        {"source": "llnl", "files": [file.name for file in files]},
    )


def read_system(file: Path) -> NDArray[np.float64]:
    """Read one category, (2, 13) float64.

    Raises:
        UserError: it is not one; names file and line.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error})") from None
    if len(lines) != MAPS:
        raise UserError(f"{file} has {len(lines)} lines; a category has {MAPS}, one a map")
    params = np.empty((MAPS, PARAMETERS))
    for t, line in enumerate(lines):
        fields = line.split(",")
        if len(fields) != PARAMETERS:
            raise UserError(f"{file}, line {t + 1}: has {len(fields)} values; a map has {PARAMETERS}")
        for column, field in enumerate(fields):
            params[t, column] = _number(field, f"{file}, line {t + 1}, value {column + 1}")
    wrong = check_system(params)
    if wrong:
        raise UserError(f"{file}, lines 1 and 2, value {PARAMETERS}: the category {wrong}")
    return params


def write_folder(params: NDArray[np.float64], folder: Path) -> list[Path]:
    """Write categories, (n, 2, 13), as ``000000.csv`` and following; return the files.

    Raises:
        UserError: the folder holds other ``.csv`` files, which would be read as categories.
        WriteError: the file system refused.
    """
    files = [folder / f"{category:06d}.csv" for category in range(len(params))]
    strangers = sorted({file.name for file in folder.glob("*.csv")} - {file.name for file in files})
    if strangers:
        raise UserError(f"{folder} already holds {strangers[0]}, which is not of this library; choose an empty folder")
    for file, system in zip(files, params, strict=True):
        atomic.write_text(file, "".join(",".join(repr(float(value)) for value in row) + "\n" for row in system))
    return files


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: {text.strip()!r} is not a number") from None
    if not np.isfinite(value):
        raise UserError(f"{where}: {text.strip()} is not finite")
    return value
