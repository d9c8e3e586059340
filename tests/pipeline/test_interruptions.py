"""Killed, doubled, starved of its data: the same command goes on, and what was finished stays."""

import csv
import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pipeline_workspace import Workspace

from scaffold import atomic
from scaffold.config import Study, resume_identity
from scaffold.results_lock import ResultsLock
from scaffold.training.workdir import work_path

pytestmark = [pytest.mark.pipeline, pytest.mark.faults, pytest.mark.timeout(300)]

EPOCHS = 30
TRAINING = Path("results/runs/small/ranks2/seed1")


def count_rows(statistics: Path) -> int:
    return len(list(csv.reader(statistics.open()))) - 1 if statistics.exists() else 0


def times_of_data(workspace: Workspace) -> dict[Path, int]:
    folders = (workspace.results / "fractals", workspace.results / "datasets")
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_killed_snakemake_continues_with_the_same_command(finished: Workspace) -> None:
    """A kill -9 amid a training on two ranks: no --unlock, no cleaning up, no finished epoch lost."""
    finished.change(starting_learning_rate=0.002, target_dice=1.0, epochs=EPOCHS)
    folder = finished.folder / TRAINING
    data = times_of_data(finished)
    finished_work = set(folder.glob("work/*"))

    first = subprocess.Popen(
        finished.command(str(TRAINING / "result.json")), cwd=finished.folder, env=finished.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any(count_rows(work / "train_stats.csv") >= 2 for work in set(folder.glob("work/*")) - finished_work):
        assert first.poll() is None, "the training ended too soon to be killed"
        assert time.monotonic() < deadline, "the training was not seen at work"
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (folder / "result.json").exists()
    # A training killed while it publishes leaves some of its outputs.
    (folder / "train_stats.csv").write_text("epoch\n")

    finished.make(str(TRAINING / "result.json"))
    result = json.loads((folder / "result.json").read_text())
    assert count_rows(folder / "train_stats.csv") == EPOCHS
    killed, continued = result["attempts"]
    assert killed["reason"] == "killed"
    assert continued["first_epoch"] > 2
    assert times_of_data(finished) == data


def test_forced_training_starts_afresh(finished: Workspace) -> None:
    """--force asks for a new measurement; publishing the old checkpoint again would fake one."""
    before = json.loads((finished.folder / TRAINING / "result.json").read_text())
    finished.make("--force", str(TRAINING / "result.json"))
    after = json.loads((finished.folder / TRAINING / "result.json").read_text())
    assert len(after["attempts"]) == 1
    assert after["attempts"][0]["start"] > before["attempts"][0]["end"]
    assert after["time_to_target_s"] != before["time_to_target_s"]


def test_second_snakemake_on_the_results_is_refused(fresh: Workspace, tmp_path: Path) -> None:
    """Snakemake's own lock does not see a second working directory; two runs would damage each other."""
    other = Workspace(tmp_path / "other")
    other.change()
    fresh.results.mkdir()
    (other.folder / "results").symlink_to(fresh.results)
    lock = ResultsLock(fresh.results)
    lock.acquire()
    done = other.snakemake()
    del lock  # held until here
    assert done.returncode == 1
    assert re.search(r"^results is in use by another Snakemake \(host \S+, pid \d+, since \S+\)", done.stdout, re.M)
    assert "Traceback" not in done.stdout
    assert {path.name for path in fresh.results.iterdir()} == {".lock"}
    assert not (other.folder / "logs").exists()


def test_failed_job_keeps_the_logs_of_all_attempts(finished: Workspace) -> None:
    """A retry must not hide why the first attempt failed; the message says which command mends it."""
    (masks,) = finished.results.glob("datasets/*/parts/0000/masks.npy")
    bytes_of_masks = masks.read_bytes()
    masks.unlink()
    finished.change(starting_learning_rate=0.002)
    done = finished.snakemake("results/runs/small/ranks1/seed1/result.json")

    assert done.returncode == 1
    log = finished.folder / "logs/train/small.ranks1.seed1.log"
    attempts = [Path(f"{log}.{number}").read_text() for number in (2, 3)]
    for text in attempts:
        assert f"{masks.relative_to(finished.folder)} is missing" in text
        assert "Traceback" not in text

    # Whatever study is run by default now: the remedy names the one that the damaged file belongs to.
    finished.write_study({"runs": {"other": {}}})
    remedy = re.search(r"rebuild it with: snakemake --profile profiles/local (.*)", attempts[0])
    assert remedy is not None
    finished.make(*shlex.split(remedy[1]))
    assert masks.read_bytes() == bytes_of_masks


def test_incurable_failure_is_not_retried(finished: Workspace) -> None:
    """On a cluster each retry in vain waits in the queue before anyone is told; other failures are retried (above)."""
    finished.change(starting_learning_rate=0.002)
    config = Study.load(finished.folder / "config/config.yaml").runs["small"].config
    output = finished.folder / "results/runs/small/ranks1/seed1"
    work = work_path(output, resume_identity(config))
    atomic.write_json(work / "failed.json", {"message": "epoch 3: a sum is not finite"})
    done = finished.snakemake("--retries", "3", str(output.relative_to(finished.folder) / "result.json"))

    assert done.returncode == 1
    logs = sorted((finished.folder / "logs/train").glob("small.ranks1.seed1.log.*"))
    assert len(logs) == 2, "the attempt that made the finished study, and one more"
    text = logs[-1].read_text()
    assert "an earlier attempt failed for good: epoch 3: a sum is not finite" in text
    assert text.endswith("exit code 70\n")
