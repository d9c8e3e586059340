"""The workflow's scripts, run as Snakemake runs them: with the name ``snakemake`` put there."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scaffold.errors import DamagedFileError
from scaffold.reporting.fom import write_fom
from scaffold.reporting.script import logged

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


def run(script, log, **parts):
    snakemake = SimpleNamespace(log=[str(log)], **parts)
    runpy.run_path(str(SCRIPTS / f"{script}.py"), init_globals={"snakemake": snakemake})


def run_inputs(directory):
    return SimpleNamespace(
        stats=str(directory / "train_stats.csv"),
        predictions=str(directory / "predictions.npz"),
        result=str(directory / "result.json"),
    )


def run_outputs(folder):
    names = {"loss": "loss.svg", "dice": "dice.svg", "time": "time.svg", "gallery": "gallery.png"}
    return SimpleNamespace(**{key: str(folder / name) for key, name in names.items()})


def test_plot_run(training, tmp_path):
    output = run_outputs(tmp_path / "figures")
    run("plot_run", tmp_path / "log", input=run_inputs(training().publish()), output=output)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "dice.svg", "gallery.png", "loss.svg", "time.svg",
    ]  # fmt: skip
    assert (tmp_path / "log").read_text().count("wrote ") == 4


def test_damaged_input_is_in_the_log_without_a_traceback(training, tmp_path, capsys):
    """The rule fails with the documented exit code, its log says why, and the results stay as they are."""
    directory = training().publish()
    (directory / "predictions.npz").write_bytes(b"PK")
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(SystemExit) as caught:
        run("plot_run", tmp_path / "log", input=run_inputs(directory), output=run_outputs(tmp_path / "figures"))
    assert caught.value.code == 65
    for text in ((tmp_path / "log").read_text(), capsys.readouterr().err):
        assert "predictions.npz cannot be read" in text
        assert "Traceback" not in text
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_summary_and_scaling(training, tmp_path):
    foms = []
    for ranks in (1, 2):
        foms.append(str(tmp_path / f"fom{ranks}.json"))
        write_fom([training(ranks=ranks).publish()], Path(foms[-1]))
    run("summary", tmp_path / "log", input=foms, output=[str(tmp_path / "summary.csv")])
    run("plot_scaling", tmp_path / "log", input=foms, output=[str(tmp_path / "scaling.svg")])
    assert len((tmp_path / "summary.csv").read_text().splitlines()) == 3
    assert (tmp_path / "scaling.svg").exists()


def test_plot_categories(tmp_path):
    categories = pytest.importorskip("scaffold.fractals.categories")
    params = np.random.default_rng(3).uniform(-0.5, 0.5, (2, 2, 13))
    params[:, :, 12] = 0.5
    table = categories.write_library(categories.Library(params, [4, 9], {}), tmp_path)
    clouds = [str(tmp_path / f"{k}.npy") for k in range(2)]
    for path in clouds:
        np.save(path, np.random.default_rng(3).random((2, 50, 3), np.float32))
    run(
        "plot_categories", tmp_path / "log", output=[str(tmp_path / "c.png")],
        input=SimpleNamespace(categories=str(table), instances=clouds), wildcards=SimpleNamespace(library="lib"),
    )  # fmt: skip
    assert (tmp_path / "c.png").exists()


def test_every_script_is_named_as_its_rule_and_tested():
    assert sorted(path.stem for path in SCRIPTS.glob("*.py")) == [
        "plot_categories", "plot_run", "plot_scaling", "summary",
    ]  # fmt: skip


def test_a_defect_leaves_its_traceback_in_the_log(tmp_path):
    with pytest.raises(ZeroDivisionError), logged([str(tmp_path / "log")]):
        1 / 0  # noqa: B018
    assert "Traceback" in (tmp_path / "log").read_text()
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()


def test_the_log_is_let_go(tmp_path):
    """A handler that stays would write one job's lines into another's log; a level that stays, to every rank's."""
    logger = logging.getLogger("scaffold")
    before = list(logger.handlers), logger.level
    with pytest.raises(SystemExit), logged([str(tmp_path / "log")]):
        raise DamagedFileError("x", "is gone", "make it")
    assert (logger.handlers, logger.level) == before
