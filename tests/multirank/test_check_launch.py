"""``scaffold check-launch`` under real launchers, and with ranks that hang."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import mpiexec, scaffold_on

from scaffold.errors import ExitCode

pytestmark = pytest.mark.multirank

HANGING = Path(__file__).with_name("hanging.py")
LIMIT_S = 4


def test_ranks_that_form_a_world_are_shown_and_measured(tmp_path):
    """A first look at a new machine: who runs where, and whether the sums are as fast as the network."""
    done = scaffold_on(2, "check-launch", "--nodes", 1, "--json", tmp_path / "launch.json")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "2 ranks on 1 host" in done.stdout
    found = json.loads((tmp_path / "launch.json").read_text())
    assert [(facts["rank"], facts["launcher_rank"], facts["local_rank"]) for facts in found["ranks"]] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert len({facts["pid"] for facts in found["ranks"]}) == 2
    assert found["world"]["mpi_library"]
    for row in found["all_reduce"]:
        assert row["algorithm_gb_s"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        assert row["bus_gb_s"] == pytest.approx(row["algorithm_gb_s"]), "two ranks: 2 (n - 1) / n is 1"
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]


def test_ranks_that_do_not_find_each_other_are_refused():
    """Hazard 52: two processes started by a launcher of which MPI knows nothing, each rank 0 of 1."""
    singleton = [sys.executable, "-m", "scaffold", "check-launch", "--ranks", "2"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "MPI_"))}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    done = subprocess.run(singleton, env=alone | slurm, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.USER_ERROR
    assert "started 2 processes (SLURM_STEP_NUM_TASKS=2), and each of them is alone" in done.stderr
    assert "srun --mpi=pmi2" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.faults
def test_a_rank_that_hangs_is_named_within_the_time_limit():
    """A job that only stands still costs its whole time limit, and tells nobody which node to take out."""
    verb = ["check-launch", "--ranks", "2", "--timeout", str(LIMIT_S)]
    command = [mpiexec(), "-n", "2", sys.executable, "-m", "mpi4py", str(HANGING), *verb]
    started = {
        fault: subprocess.Popen(
            command, env={**os.environ, "HANG": fault}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for fault in ("start 1", "roll-call 1", "sum 0")
    }
    told = {fault: process.communicate(timeout=60)[1] for fault, process in started.items()}
    assert "rank 0 (process " in told["start 1"]
    assert f"has waited {LIMIT_S} s for the others to start MPI" in told["start 1"]
    assert "rank 1 (process " not in told["start 1"]
    assert "scaffold check-launch: rank 1 does not answer (starting; waited" in told["roll-call 1"]
    assert "scaffold check-launch: rank 0 does not answer (all-reduce of 8 bytes in the control" in told["sum 0"]
    assert started["start 1"].returncode != 0
    assert {started[fault].returncode for fault in started if fault != "start 1"} == {ExitCode.RUN_AGAIN}
