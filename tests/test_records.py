"""What a training writes is what a report reads."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from scaffold.config import RunConfig, must_match
from scaffold.records import COLUMNS, LLNL_COLUMNS, OUR_COLUMNS, Result, Row
from scaffold.reporting.results import read_stats
from scaffold.training.statistics import Statistics

ATTEMPT = {"start": "2026-01-01T00:00:00+00:00", "reason": "converged", "first_epoch": 1, "wall_s": 9.5}


def content(**changes: Any) -> dict[str, Any]:
    config = RunConfig()
    return {
        "format_version": 1, "run": "tiny", "ranks": 1, "seed": 3, "config": config.model_dump(),
        "must_match": must_match(config), "training_identity": "a", "resume_identity": "b",
        "dataset": {"name": "n", "config_id": "c", "digest": "d"}, "converged": True, "epochs": 2,
        "val_dice": 0.96, "val_loss_avg": 0.1, "epoch_time_s": 8.0, "checkpoint_stall_s": 0.5,
        "minibatch_time_s": None, "total_optimizer_steps": 26, "warmup_s": 1.0, "class_weights_s": 0.2,
        "build_s": 0.1, "lost_s": 0.0, "attempts": [ATTEMPT], "parameters": 7,
        "world": {
            "ranks": 1, "hosts": 1, "backend": "gloo", "device": "x", "device_type": "cpu", "threads": 1,
            "launcher": None, "mpi_library": None,
        },
        "provenance": {"commit": "0123"}, **changes,
    }  # fmt: skip


def test_a_result_survives_its_file() -> None:
    """What else an attempt recorded stays in the file; a reader that dropped it would lose evidence."""
    result = Result.model_validate(content())
    written = json.loads(json.dumps(result.model_dump()))
    assert Result.model_validate(written) == result
    assert written["attempts"] == [ATTEMPT]


@pytest.mark.parametrize(("converged", "time"), [(True, 8.5), (False, None)])
def test_time_to_target_is_epochs_and_stalls(converged: bool, time: float | None) -> None:
    """It is in the file for people; who reads the file computes it, so an edit of it changes no figure."""
    result = Result.model_validate(content(converged=converged, time_to_target_s=1.0))
    assert result.time_to_target_s == time
    assert result.model_dump()["time_to_target_s"] == time


def test_statistics_that_training_writes_are_those_that_reports_read(tmp_path) -> None:
    """Two lists of columns would drift apart, and each side's tests would still pass."""
    rows = [
        Row(
            **dict.fromkeys(COLUMNS, 0.1 * epoch)
            | {"epoch": epoch, "optimizer_steps": 5, "total_optimizer_steps": 5 * epoch}
        )
        for epoch in (1, 2)
    ]
    statistics = Statistics(tmp_path / "train_stats.csv", [list(asdict(row).values()) for row in rows])
    statistics.write()
    read = read_stats(tmp_path / "train_stats.csv")
    assert read.to_dict("records") == [asdict(row) for row in rows]
    assert (LLNL_COLUMNS[-1], OUR_COLUMNS[0]) == ("total_optimizer_steps", "learning_rate")


def test_records_need_no_torch() -> None:
    """Reports would take seconds to start, and need what only a training needs."""
    code = "import sys, scaffold.records; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
