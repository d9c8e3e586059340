"""profiles/flux on a real Flux of two nodes on this machine, where there is one."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from broken_study import LIMIT_S, STUDY, pace
from pipeline_workspace import Workspace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("flux") is None, reason="flux is not installed"),
    pytest.mark.timeout(LIMIT_S + 60),
]

RUNS = ("wide", "steady", "limit")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of an undisturbed training on two nodes, of one on one node, and of one with a time limit."""
    workspace = Workspace(tmp_path_factory.mktemp("flux"))
    pace(workspace)
    workspace.write_study({**STUDY, "runs": {run: STUDY["runs"][run] for run in RUNS}})
    files = {run: Path(f"results/runs/{run}/ranks{STUDY['runs'][run]['ranks'][0]}/seed42/result.json") for run in RUNS}
    done = subprocess.run(
        ["flux", "start", "--test-size=2", *workspace.command(*map(str, files.values()), profile="profiles/flux")],
        cwd=workspace.folder, env=workspace.environment(), text=True, timeout=LIMIT_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    return {run: json.loads((workspace.folder / file).read_text()) for run, file in files.items()}


def test_shapes(results: dict[str, dict[str, Any]]) -> None:
    """The ranks of a job must have found each other, on one node and on two."""
    for run in ("wide", "steady"):
        (attempt,) = results[run]["attempts"]
        assert attempt["world"]["ranks"] == 2
        assert attempt["job"].startswith("FLUX_JOB_ID=")


def test_time_limit(results: dict[str, dict[str, Any]]) -> None:
    """Flux gives no warning: the training stops by itself, is submitted again, and continues."""
    first, second = results["limit"]["attempts"]
    assert (first["ending"], first["exit_code"]) == ("time limit", 75)
    assert second["first_epoch"] == first["last_epoch"] + 1
