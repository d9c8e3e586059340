"""The files of a library."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fractal_reference import small_config

from scaffold.errors import DamagedFileError, UserError
from scaffold.fractals.categories import Library, load_categories, write_library
from scaffold.fractals.search import find_categories


@pytest.fixture
def copy(library: Path, tmp_path: Path) -> Path:
    """A library that a test may damage."""
    for file in library.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / library.name


def test_reading_gives_the_bits_that_were_written(tmp_path: Path) -> None:
    """A decimal place lost is another fractal after a few hundred steps; so all of 53 bits, and the extremes."""
    params = np.zeros((2, 2, 13))
    params[:, 0, 12] = 1
    params[0, 0, :6] = [0.1, 1 / 3, -0.0, 5e-324, np.nextafter(1, 0), -1.7976931348623157e308]
    table = write_library(Library(params, [-1, -1], {}), tmp_path / "new")
    assert load_categories(table).tobytes() == params.tobytes()


def test_the_description_records_how_it_was_made(library: Path) -> None:
    """Numbers carry their conditions: settings, code version, counters and provenance."""
    description = json.loads(library.with_suffix(".json").read_text())
    assert description["settings"]["seed"] == 42
    assert description["settings"]["version.search"] == 1
    assert description["points"] == 1024
    assert description["source"] == "search"
    assert {"commit", "host", "created_at", "versions"} <= set(description["provenance"])


def without_last_lines(count: int) -> Callable[[str], str]:
    return lambda text: "".join(text.splitlines(keepends=True)[:-count])


DAMAGES: list[tuple[Callable[[str], str], str]] = [
    (lambda text: "", "line 1 is not the header"),
    (lambda text: text[:-1], "is truncated"),
    (lambda text: text[: len(text) // 2], "is truncated"),
    (without_last_lines(1), "is truncated"),
    (without_last_lines(2), r"has 2 categories, but categories\.json says 3"),
    (without_last_lines(6), "is truncated"),
    (lambda text: text.replace("0,15,0,", "0,15,0,0.5,"), "line 2 is not a row of 16 numbers"),
    (lambda text: re.sub("0,15,0,.*", "0,15,0,0.5", text), "line 2 is not a row of 16 numbers"),
    (lambda text: text.replace("0,15,0,", "0,15,0,~"), "line 2 is not a row of 16 numbers"),
    (lambda text: text.replace("1,22,0,", "1,22,1,"), "line 4 is map 1 of category 1 instead of 0 of 1"),
    (lambda text: text.replace("2,63,1,", "1,63,1,"), "line 7 is map 1 of category 1 instead of 1 of 2"),
    (lambda text: text.replace("0,15,", "0,16,"), "was altered"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_table_is_named(damage: Callable[[str], str], message: str, copy: Path) -> None:
    """Damage that passes would give other data under the same name; the error says what rebuilds it."""
    load_categories(copy)
    text = copy.read_text()
    assert damage(text) != text
    copy.write_text(damage(text))
    with pytest.raises(DamagedFileError, match=message) as error:
        load_categories(copy)
    assert str(copy) in str(error.value)
    assert f"rebuild it with: snakemake --profile profiles/local --configfile results/study.yaml --force {copy}" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "holds a number that is not finite"), (np.inf, "not finite"), (1.5, "must sum to 1"), (-0.5, "negative")],
)
def test_numbers_that_are_no_category_are_refused(value: float, message: str, tmp_path: Path) -> None:
    """Even under the right digest: NaN, or probabilities that do not sum to 1."""
    library = find_categories(small_config())
    library.params[1, 0, 12] = value
    table = write_library(library, tmp_path)
    with pytest.raises(DamagedFileError, match=f"category 1 .*{message}"):
        load_categories(table)


def test_a_damaged_description_is_named(copy: Path) -> None:
    """A table without its description cannot be told from a truncated one."""
    description = copy.with_suffix(".json")
    description.write_text('{"categories": 3')
    with pytest.raises(DamagedFileError, match=r"categories\.json is not JSON"):
        load_categories(copy)
    description.write_text("[]")
    with pytest.raises(DamagedFileError, match="not a JSON object"):
        load_categories(copy)
    description.unlink()
    with pytest.raises(UserError, match=r"categories\.json does not exist; make it with: snakemake"):
        load_categories(copy)
