"""The summary of a study."""

from __future__ import annotations

import io
import os

import pandas as pd
import pytest
from rich.console import Console

from scaffold.errors import DamagedFileError, UserError
from scaffold.reporting.fom import figure_of_merit, write_fom
from scaffold.reporting.results import read_training
from scaffold.reporting.tables import read_summary, show_summary, summary, write_summary


@pytest.fixture
def figure(training):
    def make(**arguments):
        directory = training(**arguments).publish()
        return figure_of_merit([read_training(directory)])

    return make


def test_speed_up_against_the_smallest_rank_count(figure):
    rows = [figure(ranks=4, epoch_s=1.0), figure(ranks=1, epoch_s=3.0), figure(ranks=2, epoch_s=2.0)]
    table = summary(rows)
    assert table.ranks.tolist() == [1, 2, 4]
    time = table.time_to_target_s
    assert table.speed_up.tolist() == [1, time[0] / time[1], time[0] / time[2]]
    assert table.parallel_efficiency[2] == pytest.approx(time[0] / time[2] / 4)
    assert 0.7 < table.parallel_efficiency[2] < 0.8


def test_efficiency_of_a_run_that_begins_at_two_ranks(figure):
    """Dividing by the ranks instead of their ratio would call the very first row 50 % efficient."""
    table = summary([figure(ranks=2, epoch_s=4.0), figure(ranks=4, epoch_s=2.0)])
    assert table.parallel_efficiency.tolist() == pytest.approx([1, 1], rel=0.1)


def test_runs_keep_their_order_and_do_not_mix(figure):
    table = summary([figure(run="wide", epoch_s=9.0), figure(run="tiny", ranks=2), figure(run="wide", ranks=2)])
    assert list(zip(table.run, table.ranks, strict=True)) == [("wide", 1), ("wide", 2), ("tiny", 2)]
    assert table.speed_up[2] == 1


def test_without_a_figure_there_is_no_speed_up(figure):
    """The smallest rank count failed: the next one must not silently become the reference."""
    table = summary([figure(ranks=1, converged=False), figure(ranks=2), figure(ranks=4)])
    assert table.speed_up.isna().all()
    assert table.time_to_target_s.isna().tolist() == [True, False, False]
    assert table.epoch_speed_up.notna().all()


def test_file_reads_back_equal(training, tmp_path):
    foms = []
    for ranks in (1, 2):
        foms.append(tmp_path / f"fom{ranks}.json")
        write_fom([training(ranks=ranks).publish()], foms[-1])
    table = write_summary(foms, tmp_path / "summary.csv")
    pd.testing.assert_frame_equal(read_summary(tmp_path / "summary.csv"), table, check_dtype=False)


def test_shown_with_the_figure_of_merit_and_where_to_look(training, tmp_path):
    directory = training().publish()
    write_fom([directory], directory.parent / "fom.json")
    write_summary([directory.parent / "fom.json"], tmp_path / "summary.csv")
    for drawn in ("figures/tiny/loss.svg", "figures/lib/categories.png"):
        (tmp_path / drawn).parent.mkdir(parents=True)
        (tmp_path / drawn).touch()

    def shown():
        text = io.StringIO()
        show_summary(tmp_path / "summary.csv", Console(file=text, width=200))
        return text.getvalue()

    text = shown()
    assert "tiny on 1 rank (Example CPU 9000): validation Dice 0.95 in" in text
    assert f"figures: {tmp_path}/figures/\n" in text
    assert f"report:  make report STUDY={tmp_path}/study.yaml\n" in text
    assert "\x1b" not in text
    (tmp_path / "report.html").touch()
    assert f"report:  {tmp_path}/report.html" in shown()
    # The report of another study, or of this one before its last run, would be shown as this one's.
    os.utime(tmp_path / "report.html", (0, 0))
    assert f"report:  older than this; make report STUDY={tmp_path}/study.yaml\n" in shown()


def test_damaged_or_missing_summary(tmp_path):
    path = tmp_path / "summary.csv"
    with pytest.raises(UserError, match="does not exist; make it with: snakemake"):
        read_summary(path)
    path.write_text("run,ranks\ntiny,1\n")
    with pytest.raises(DamagedFileError, match="lacks the column seeds"):
        read_summary(path)
    path.write_text("")
    with pytest.raises(DamagedFileError, match="not a table"):
        read_summary(path)
    with pytest.raises(UserError, match=r"at least one"):
        summary([])
