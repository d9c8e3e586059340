"""profiles/flux against a stand-in for the command ``flux``: its command lines, and what it makes of the answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import flux_stub
import pytest
from pipeline_workspace import ROOT, Workspace

pytestmark = pytest.mark.timeout(300)

PROFILE = ROOT / "profiles" / "flux"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in that is on PATH as ``flux``."""
    folder = tmp_path / "flux"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "flux"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{flux_stub.__file__}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("FLUX_STUB", str(folder))
    # A training that asks for a GPU takes the CPU for it only where GPUs are hidden.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(stub: Path, verb: str) -> list[list[str]]:
    lines = [json.loads(line) for line in (stub / "calls.jsonl").read_text().splitlines()]
    return [arguments for found, *arguments in lines if found == verb]


@pytest.mark.pipeline
def test_training_is_submitted_and_after_its_time_limit_again(finished: Workspace, stub: Path) -> None:
    """A limit in seconds instead of minutes, or one task instead of N, would be noticed on the cluster, and late."""
    finished.change(
        starting_learning_rate=0.002, run={"resources": {"ranks_per_node": 1, "threads": 2, "runtime": 7, "gpus": 1}}
    )
    (stub / "time-limit").write_text("scaffold-train")
    target = "results/runs/small/ranks2/seed1/result.json"
    done = finished.snakemake("--retries", "1", "--seconds-between-status-checks", "1", target, profile="profiles/flux")

    assert done.returncode == 0, done.stdout
    first, second = calls(stub, "batch")
    assert first[:-1] == [
        "--job-name=scaffold-train", f"--output={first[1].partition('=')[2]}", "--time-limit=7m",
        "--nodes=2", "--nslots=2", "--cores-per-slot=2", "--gpus-per-slot=1",
    ]  # fmt: skip
    assert first[1].startswith("--output=logs/flux/train.")
    assert first[1].endswith(".{{id}}.log")
    assert second[:-1] == first[:-1]
    (launched,) = calls(stub, "run")
    assert launched[:4] == ["--nodes=2", "--ntasks=2", "--cores-per-task=2", "--gpus-per-task=1"]
    assert launched[4:9] == ["python", "-m", "mpi4py", "-m", "scaffold"]
    assert json.loads((finished.folder / target).read_text())["ranks"] == 2


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("", "running"), ("0", "success"), ("1", "failed"), ("limit", "failed"), (None, "running")],
)
def test_states_of_a_job(stub: Path, outcome: str | None, status: str) -> None:
    """Any other word, or none, stops Snakemake with all its jobs; a Flux that does not answer must not."""
    (stub / "jobs").mkdir()
    if outcome is not None:
        (stub / "jobs" / "ƒ1").write_text(outcome)
    done = subprocess.run([PROFILE / "status.sh", "ƒ1"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{status}\n"


def test_cancelling(stub: Path) -> None:
    """Snakemake starts the program itself: as `flux cancel` it would be sought under that name, blank and all."""
    subprocess.run([PROFILE / "cancel.sh", "ƒ1", "ƒ2"], check=True)
    assert calls(stub, "cancel") == [["ƒ1", "ƒ2"]]
