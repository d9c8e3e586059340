"""The verbs search, instances, import-library and export-library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaffold.cli import main
from scaffold.config import Study, library_name
from scaffold.errors import ExitCode
from scaffold.fractals.categories import load_categories


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_search_makes_the_library_that_snakemake_names(study: Path, library: Path, tmp_path: Path) -> None:
    """Snakemake passes the library's name, not the run's: both must mean the same settings."""
    name = library_name(Study.load(study).run("small").config)
    assert run("search", "--config", study, "--library", name, "--output", tmp_path / "a") == ExitCode.DONE
    assert run("search", "--config", study, "--run", "small", "--output", tmp_path / "b") == ExitCode.DONE
    for made in "ab":
        assert (tmp_path / made / "categories.csv").read_bytes() == library.read_bytes()


def test_instances_are_those_of_the_category_asked_for(
    study: Path, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a study and a library on disk to the clouds."""
    arguments = ["instances", "--config", study, "--categories", library, "--category", 1]
    assert run(*arguments, "--output", tmp_path / "new" / "1.npy", "--threads", 2) == ExitCode.DONE
    assert "145 clouds of 1024 points, 4 of them attenuated" in capsys.readouterr().out
    assert np.load(tmp_path / "new" / "1.npy").shape == (145, 1024, 3)


@pytest.mark.parametrize("category", [-1, 3])
def test_a_category_that_is_not_there(
    category: int, study: Path, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Index -1 would silently be the last category."""
    arguments = ["instances", "--config", study, "--categories", library, "--category", category]
    assert run(*arguments, "--output", tmp_path / "x.npy") == ExitCode.USER_ERROR
    assert f"--category {category}: {library} has the categories 0 .. 2" in capsys.readouterr().err
    assert not (tmp_path / "x.npy").exists()


def test_a_damaged_library_ends_with_its_own_exit_code(
    study: Path, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, exit code 65, and the command that rebuilds it."""
    copy = tmp_path / "categories.csv"
    copy.write_bytes(library.read_bytes()[:-1])
    copy.with_suffix(".json").write_bytes(library.with_suffix(".json").read_bytes())
    arguments = ["instances", "--config", study, "--categories", copy, "--category", 0, "--output", tmp_path / "0.npy"]
    assert run(*arguments) == ExitCode.DAMAGED
    error = capsys.readouterr().err
    assert f"{copy} is truncated" in error
    assert f"--force {copy}" in error
    assert "Traceback" not in error


def test_a_wrong_study_creates_nothing(study: Path, tmp_path: Path) -> None:
    """Hazard 58: the search makes its own two files, and those only when the settings are right."""
    output = tmp_path / "library"
    assert run("search", "--config", study, "--set", "variance_threshold=2.0", "--output", output) == 2
    assert run("search", "--config", study, "--library", "scale6-c3-000000000000", "--output", output) == 2
    assert run("search", "--config", study, "--ranks", 2, "--output", output) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["study.yaml"]


def test_libraries_go_to_llnl_and_back(library: Path, tmp_path: Path) -> None:
    """The two conversions of the command line undo each other."""
    assert run("export-library", library, "--output", tmp_path / "llnl") == ExitCode.DONE
    assert run("import-library", tmp_path / "llnl", "--output", tmp_path / "new") == ExitCode.DONE
    assert load_categories(tmp_path / "new" / "categories.csv").tobytes() == load_categories(library).tobytes()
    assert run("import-library", tmp_path / "none", "--output", tmp_path / "other") == ExitCode.USER_ERROR
    assert not (tmp_path / "other").exists()
