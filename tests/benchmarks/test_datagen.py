"""The benchmark of data generation still runs: it is not part of the package, and nothing else would notice."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_step_runs_and_is_recorded(tmp_path: Path) -> None:
    """At scale 4, one round: a renamed function breaks the script, and arms that differ stop it."""
    table = tmp_path / "datagen.csv"
    command = [sys.executable, "benchmarks/datagen.py", table, "--scales", "4", "--repeats", "1", "--scratch", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    arms = ["straightforward", "scaffold", "scaffold again"]
    assert [(row["step"], row["arm"]) for row in rows] == [
        *((step, arm) for step in ("search", "points", "voxelize") for arm in arms),
        *(("render", arm) for arm in [arms[0], "straightforward, on disk", *arms[1:]]),
    ]
    assert all(float(row["rate_low"]) <= float(row["rate"]) <= float(row["rate_high"]) for row in rows)
    assert {row["speedup"] for row in rows if row["arm"] == arms[0]} == {"1"}
    assert json.loads(table.with_suffix(".json").read_text())["cpu"]
