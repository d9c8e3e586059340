"""LLNL's libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaffold.errors import UserError
from scaffold.fractals.categories import load_categories, write_library
from scaffold.fractals.llnl_csv import read_folder, read_system, write_folder

ROW = "0.5,0,0,0,0.5,0,0,0,0.5,0.1,0.2,0.3"


def test_export_and_import_give_the_same_bits(library: Path, tmp_path: Path) -> None:
    """A site's library must survive the way there and back."""
    params = load_categories(library)
    files = write_folder(params, tmp_path / "llnl")
    assert [file.name for file in files] == ["000000.csv", "000001.csv", "000002.csv"]
    assert files[0].read_text().count("\n") == 2
    np.testing.assert_array_equal(np.loadtxt(files[1], delimiter=","), params[1])
    imported = read_folder(tmp_path / "llnl")
    assert imported.params.tobytes() == params.tobytes()
    assert load_categories(write_library(imported, tmp_path / "new")).tobytes() == params.tobytes()
    assert imported.description["source"] == "llnl"


def test_categories_are_in_the_order_of_file_names(tmp_path: Path) -> None:
    """Hazard 41: the order of a directory listing must not define the category's index."""
    for number in (3, 0, 11, 2):
        (tmp_path / f"{number:06d}.csv").write_text(f"{number},{ROW[4:]},0.25\n{ROW},0.75\n")
    library = read_folder(tmp_path)
    assert library.params[:, 0, 0].tolist() == [0, 2, 3, 11]
    assert library.description["files"][-1] == "000011.csv"


def test_the_way_other_programs_write_is_read(tmp_path: Path) -> None:
    """NumPy's exponents, blanks after commas, Windows line ends and an empty last line are all harmless."""
    file = tmp_path / "000000.csv"
    exponents = ", ".join(f"{float(value):.18e}" for value in f"{ROW},0.25".split(","))
    file.write_bytes(f"{exponents}\r\n{ROW},0.7500000001\r\n\r\n".encode())
    assert read_system(file)[:, 9:].tolist() == [[0.1, 0.2, 0.3, 0.25], [0.1, 0.2, 0.3, 0.7500000001]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 lines; a category has 2"),
        (f"{ROW},0.25\n", "has 1 lines"),
        (f"{ROW},0.25\n{ROW},0.25\n{ROW},0.5\n", "has 3 lines"),
        (f"{ROW}\n{ROW},0.75\n", "line 1: has 12 values; a map has 13"),
        (f"{ROW},0.25\n{ROW},0.75,1\n", "line 2: has 14 values"),
        (f"{ROW},0.25\n{ROW},abc\n", "line 2, value 13: 'abc' is not a number"),
        (f"nan{ROW[3:]},0.25\n{ROW},0.75\n", "line 1, value 1: nan is not finite"),
        (f"{ROW},0.25\n{ROW},0.7501\n", "probabilities 0.25 and 0.7501, which must not be negative and must sum to 1"),
        (f"{ROW},-0.25\n{ROW},1.25\n", "probabilities -0.25 and 1.25"),
    ],
)
def test_what_is_no_category_is_refused_by_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    """A library of hundreds of files: the user must be told which line of which."""
    (tmp_path / "000000.csv").write_text(f"{ROW},0.25\n{ROW},0.75\n")
    (tmp_path / "000001.csv").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_folder(tmp_path)
    assert "000001.csv" in str(error.value)


def test_folders_without_a_library_are_refused(tmp_path: Path) -> None:
    """An empty import would be a library of no classes."""
    with pytest.raises(UserError, match="holds no NNNNNN"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        read_folder(tmp_path / "none")


def test_export_refuses_a_folder_with_other_categories(library: Path, tmp_path: Path) -> None:
    """Files of a longer, older export would be read as further categories; the same export may be repeated."""
    params = load_categories(library)
    write_folder(params, tmp_path)
    write_folder(params, tmp_path)
    with pytest.raises(UserError, match="already holds 000002"):
        write_folder(params[:2], tmp_path)
