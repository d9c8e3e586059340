"""``scaffold check-launch`` as a site's first step: it tells a world from so many single processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def check_launch(pmi: str, report: Path) -> subprocess.CompletedProcess[str]:
    """Run it with two ranks on two nodes."""
    launcher = ["srun", f"--mpi={pmi}", "--wait=30", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    command = [sys.executable, "-m", "mpi4py", "-m", "scaffold", "check-launch", "--ranks", "2"]
    command += ["--timeout", "60", "--json", str(report)]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=110)


def test_ranks_of_the_right_pmi_find_each_other(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A launcher that works would be refused, or its ranks not told apart."""
    done = check_launch("pmi2", tmp_path / "launch.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "launch.json").read_text())
    assert len(report["ranks"]) == 2


def test_single_processes_are_refused(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The wrong --mpi starts two trainings that know nothing of each other, in one folder."""
    done = check_launch("none", tmp_path / "launch.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--mpi" in done.stdout + done.stderr
    assert not (tmp_path / "launch.json").exists()
