"""A library of categories and its two files.

``categories.csv`` holds two rows a category, one a map; it is a pure function of the settings. Numbers
are written with ``repr``, so reading gives the same bits. ``categories.json``, written last, tells how
the library came about, and carries the digest of the CSV, so that a truncated or edited one is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaffold import atomic, provenance
from scaffold.errors import DamagedFileError, UserError
from scaffold.fractals.ifs import COEFFICIENTS, MAPS, PARAMETERS
from scaffold.remedy import rebuild_command

COEFFICIENT_NAMES = (*(f"a{row}{column}" for row in range(3) for column in range(3)), "b0", "b1", "b2")
"""The 12 coefficients of a map in their order: matrix row-major, then translation."""

HEADER = ("category", "candidate", "map", *COEFFICIENT_NAMES, "probability")

PROBABILITY_TOLERANCE = 1e-6
"""By how much the probabilities of an imported category may miss a sum of 1."""


@dataclass(frozen=True)
class Library:
    """Categories in order.

    Attributes:
        params: (n, 2, 13) float64.
        candidates: number of the candidate that each category was, n integers; -1 for an imported one.
        description: what ``categories.json`` says of how it was made (plain JSON types).
    """

    params: NDArray[np.float64]
    candidates: Sequence[int]
    description: dict[str, Any]


def write_library(library: Library, directory: Path) -> Path:
    """Write ``categories.csv`` and then ``categories.json`` into ``directory``; return the former's path.

    Raises:
        WriteError: the file system refused.
    """
    table = directory / "categories.csv"
    text = _to_csv(library)
    atomic.write_text(table, text)
    atomic.write_json(
        table.with_suffix(".json"),
        {
            "categories": len(library.params),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            **library.description,
            "provenance": provenance.stamp(),
        },
    )
    return table


def load_categories(path: str | Path) -> NDArray[np.float64]:
    """Read a library.

    Args:
        path: its ``categories.csv``; ``categories.json`` must lie beside it.

    Returns:
        (n, 2, 13) float64, the bits that were written.

    Raises:
        UserError: there is no such file.
        DamagedFileError: either file is unreadable or incomplete, or they do not belong together.
    """
    path = Path(path)
    content = _read(path)
    description = _load_description(path.with_suffix(".json"))
    params = _from_csv(content, path)
    if len(params) != description.get("categories"):
        problem = f"has {len(params)} categories, but {path.stem}.json says {description.get('categories')}"
        raise DamagedFileError(path, problem, rebuild_command(path))
    if hashlib.sha256(content).hexdigest() != description.get("sha256"):
        raise DamagedFileError(
            path, f"was altered: its SHA-256 is not the one in {path.stem}.json", rebuild_command(path)
        )
    return params


def check_system(params: NDArray[np.float64]) -> str | None:
    """Return what is wrong with one category, (2, 13), as a clause; None if nothing is."""
    if not np.all(np.isfinite(params)):
        return "holds a number that is not finite"
    probabilities = params[:, COEFFICIENTS]
    if probabilities.min() < 0 or abs(probabilities.sum() - 1) > PROBABILITY_TOLERANCE:
        found = " and ".join(repr(float(p)) for p in probabilities)
        return f"has the probabilities {found}, which must not be negative and must sum to 1"
    return None


def _to_csv(library: Library) -> str:
    lines = [",".join(HEADER)]
    for category, (params, candidate) in enumerate(zip(library.params, library.candidates, strict=True)):
        for t, row in enumerate(params):
            lines.append(",".join([str(category), str(candidate), str(t), *(repr(float(value)) for value in row)]))
    return "\n".join(lines) + "\n"


def _from_csv(content: bytes, path: Path) -> NDArray[np.float64]:
    lines = content.decode("utf-8", errors="replace").split("\n")
    if lines[0] != ",".join(HEADER):
        raise DamagedFileError(path, "line 1 is not the header of a library", rebuild_command(path))
    if lines.pop() != "" or len(lines) % MAPS != 1 or len(lines) == 1:
        raise DamagedFileError(path, "is truncated", rebuild_command(path))
    rows = np.empty((len(lines) - 1, PARAMETERS))
    for index, line in enumerate(lines[1:]):
        category, t = divmod(index, MAPS)
        try:
            first, _, third, *numbers = line.split(",")
            labels = int(first), int(third)
            rows[index] = np.reshape([float(number) for number in numbers], PARAMETERS)
        except ValueError:
            raise DamagedFileError(
                path, f"line {index + 2} is not a row of {len(HEADER)} numbers", rebuild_command(path)
            ) from None
        if labels != (category, t):
            problem = f"line {index + 2} is map {labels[1]} of category {labels[0]} instead of {t} of {category}"
            raise DamagedFileError(path, problem, rebuild_command(path))
    params = rows.reshape(-1, MAPS, PARAMETERS)
    for category, system in enumerate(params):
        wrong = check_system(system)
        if wrong:
            raise DamagedFileError(path, f"category {category} {wrong}", rebuild_command(path))
    return params


def _load_description(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise DamagedFileError(path, f"is not JSON ({error})", rebuild_command(path)) from None
    if not isinstance(content, dict):
        raise DamagedFileError(path, "is not a JSON object", rebuild_command(path))
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; make it with: {rebuild_command(path)}") from None
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error.strerror})", rebuild_command(path)) from error
