"""The benchmark of the training step still runs: it is not part of the package, and nothing else would notice."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARMS = ["stock eager, contiguous", "ours"]


def test_both_networks_are_timed_and_earlier_rows_stay(tmp_path: Path) -> None:
    """At scale 4 on a CPU, one round: a renamed function breaks the script; rows of another scale must survive it."""
    table = tmp_path / "step.csv"
    table.write_text("scale,batch,arm,ms\n3,1,kept,7.0\n4,1,replaced,7.0\n")
    options = ["--device", "cpu", "--scales", "4", "--rounds", "1", "--steps", "1", "--arms", *ARMS]
    command = [sys.executable, "benchmarks/step.py", str(tmp_path), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(table, newline="") as file:
        kept, *rows = csv.DictReader(file)
    assert (kept["scale"], kept["arm"], kept["ms"]) == ("3", "kept", "7.0")
    assert [row["arm"] for row in rows] == [*ARMS, f"{ARMS[0]} (again)"]
    assert all(float(row["ms_low"]) <= float(row["ms"]) <= float(row["ms_high"]) for row in rows)
    assert (rows[0]["speedup"], {row["over"] for row in rows}) == ("1.0", {ARMS[0]})
    assert not (tmp_path / "step_profile.csv").exists(), "a CPU has no kernels to class"
