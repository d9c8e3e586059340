"""Log lines and progress bars."""

from __future__ import annotations

import contextlib
import io
import logging
import sys

import pytest

from scaffold import progress


@pytest.fixture(autouse=True)
def restore_logging():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level


def test_every_item_once_and_in_order():
    assert list(progress.track(iter("abc"), "working", 3)) == ["a", "b", "c"]
    assert list(progress.track(iter("abc"), "working", 3, rank=1)) == ["a", "b", "c"]


def test_a_batch_job_gets_a_line_now_and_then(monkeypatch, caplog):
    """A log file full of control characters, or a line for each of a million items, is of no use."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    caplog.set_level(logging.INFO, "scaffold")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert len(list(progress.track(range(12), "rendering", 12))) == 12
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "rendering: 2 of 12"
    assert 2 <= len(lines) <= 4


@pytest.mark.parametrize(("rank", "shown"), [(0, ["I ready", "W careful"]), (3, ["[rank 3] W careful"])])
def test_other_ranks_only_warn(monkeypatch, rank, shown):
    """A thousand ranks that all report the same progress bury the one that warns."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    progress.setup_logging(rank)
    logging.getLogger("scaffold").info("ready")
    logging.getLogger("scaffold").warning("careful")
    assert [line.partition(" ")[2] for line in text.getvalue().splitlines()] == shown


def test_log_goes_where_standard_error_is_now(capsys):
    """A log bound to a stream that was replaced and closed would fail at its next line."""
    with contextlib.redirect_stderr(io.StringIO()) as early:
        progress.setup_logging()
        logging.getLogger("scaffold").info("first")
    early.close()
    logging.getLogger("scaffold").info("second")
    assert "second" in capsys.readouterr().err
