"""One study on a Slurm, most of whose trainings are broken on the way, each in its own manner."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline_workspace import Workspace
from slurm_cluster import SlurmCluster, environment_of, processes, slurm

from scaffold.records import TIME_COLUMNS

SITE = Path(__file__).with_name("site")
EPOCHS = {1: 60, 2: 30}
STEP_S = 0.12
LIMIT_S = 540

_ONE = {"target_dice": 1.0, "epochs": EPOCHS[1], "ranks": [1]}
_TWO = {"target_dice": 1.0, "epochs": EPOCHS[2], "ranks": [2]}
_HOURS = {"runtime": 30, "mem_mb": 600}
STUDY: dict[str, Any] = {
    # Twelve training volumes of 16^3.
    "defaults": {
        "problem_scale": 4,
        "unet_bottleneck_dim": 2,
        "unet_base_channels": 2,
        "group_norm_groups": 2,
        "n_categories": 2,
        "n_instances_used_per_fractal": 24,
        "target_dice": 0.0,
        "warmup_batches": 1,
        "dataloader_num_workers": 0,
    },
    "runs": {
        # Shapes; any Dice is enough, so that one epoch is.
        "wide": {"ranks": [2], "resources": {**_HOURS, "ranks_per_node": 1}},
        "grid": {"ranks": [4], "resources": {**_HOURS, "ranks_per_node": 2, "gpus": 1}},
        # Trainings that take their time: undisturbed, and broken.
        "long": {**_ONE, "resources": _HOURS},
        "limit": {**_ONE, "resources": {**_HOURS, "runtime": 2}},
        "steady": {**_TWO, "resources": _HOURS},
        "requeue": {**_TWO, "resources": _HOURS},
        "cancel": {**_TWO, "resources": _HOURS},
        "killed": {**_TWO, "resources": _HOURS},
        "node": {**_TWO, "resources": _HOURS},
        # Meets a NaN: nothing that a retry would cure.
        "diverging": {**_TWO, "starting_learning_rate": 1000.0, "resources": _HOURS},
    },
}

# The epochs of this training on any machine take as long as those of a large one, so that
# it can be broken between two of them, and cannot end before its time limit.
_PACE = f"""

import time as _time

_unpaced_step = train_step


def train_step(learner, batch):
    _time.sleep({STEP_S})
    if learner.optimizer.param_groups[0]["lr"] > 100:
        next(learner.model.parameters()).data.fill_(float("nan"))
    return _unpaced_step(learner, batch)
"""


def pace(workspace: Workspace) -> None:
    """Let the trainings of ``workspace`` take their time."""
    step = workspace.use_copy_of_source() / "scaffold/training/step.py"
    step.write_text(step.read_text() + _PACE)


@dataclass
class BrokenStudy:
    """The study under way, and what became of it.

    Attributes:
        workspace: where it runs.
        cluster: what it runs on.
        log: what was done to it, line by line.
        output: of Snakemake, when it has ended.
        code: exit code of Snakemake.
        jobs: Slurm's description of each job of a training that was seen running.
    """

    workspace: Workspace
    cluster: SlurmCluster
    log: list[str] = field(default_factory=list)
    output: str = ""
    code: int | None = None
    jobs: dict[str, str] = field(default_factory=dict)
    _plan: list[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=list)
    _start: float = 0.0

    def run(self) -> None:
        """Run the study to its end, and do to each training what its name says."""
        pace(self.workspace)
        self.workspace.write_study(STUDY)
        self._start = time.monotonic()
        for run, action in {
            "requeue": self._requeue,
            "cancel": self._cancel,
            "killed": self._kill_rank,
            "node": self._kill_node,
        }.items():
            self._plan.append((partial(self._is_at_work, run), partial(action, run)))
        captured = self.workspace.folder / "snakemake.log"
        with captured.open("w") as sink:
            command = self.workspace.command("--profile", str(SITE), *self._targets(), profile="profiles/slurm")
            snakemake = subprocess.Popen(
                command, cwd=self.workspace.folder, env=self.workspace.environment(),
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                self._note("study", "started")
                while snakemake.poll() is None:
                    assert time.monotonic() < self._start + LIMIT_S, f"not done within {LIMIT_S} s"
                    for step in self._plan.copy():
                        is_due, action = step
                        if is_due():
                            self._plan.remove(step)
                            action()
                    self._look_at_jobs()
                    time.sleep(0.3)
            finally:
                if snakemake.poll() is None:
                    snakemake.send_signal(signal.SIGINT)
                    try:
                        snakemake.wait(20)
                    except subprocess.TimeoutExpired:
                        snakemake.kill()
                        snakemake.wait()
                self.code, self.output = snakemake.returncode, captured.read_text()
        self._note("study", f"ended with exit code {self.code}")
        assert not self._plan, f"the study ended before all was done to it: {self.log}\n{self.output[-4000:]}"

    def folder(self, run: str) -> Path:
        """Return the output folder of a training."""
        (ranks,) = STUDY["runs"][run]["ranks"]
        return self.workspace.results / f"runs/{run}/ranks{ranks}/seed42"

    def result(self, run: str) -> dict[str, Any]:
        """Return the ``result.json`` of a training."""
        content: dict[str, Any] = json.loads((self.folder(run) / "result.json").read_text())
        return content

    def rows(self, run: str) -> list[dict[str, str]]:
        """Return ``train_stats.csv`` of a training without what measures time."""
        with open(self.folder(run) / "train_stats.csv", newline="") as file:
            return [{k: v for k, v in line.items() if k not in TIME_COLUMNS} for line in csv.DictReader(file)]

    def weights(self, run: str) -> bytes:
        """Return the trained weights as they lie in their file."""
        return (self.folder(run) / "model.safetensors").read_bytes()

    def epochs(self, run: str) -> int:
        """Return the number of epochs that a training has finished so far."""
        return max(map(_rows, self.folder(run).glob("work/*/train_stats.csv")), default=0)

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """Return the record of a training's attempts so far."""
        (record,) = self.folder(run).glob("work/*/attempts.json")
        content: list[dict[str, Any]] = json.loads(record.read_text())
        return content

    def job(self, run: str) -> str:
        """Return the id of the Slurm job in which a training runs, or ran last."""
        return str(self.attempts(run)[-1]["job"]).removeprefix("SLURM_JOB_ID=")

    @property
    def submitted(self) -> list[str]:
        """The run of each job of a training that Snakemake submitted."""
        return re.findall(r"submitted with SLURM jobid .*/rule_train/([a-z]+)_", self.output)

    def summary(self) -> str:
        """Return what was done, and how each training went on, as text."""
        lines = [*self.log, "", f"{'training':<10} {'job':>4} {'epochs':>9} {'seconds':>8}  how the attempt ended"]
        for run in STUDY["runs"]:
            for attempt in self.attempts(run):
                job = str(attempt["job"]).removeprefix("SLURM_JOB_ID=")
                span = f"{attempt['first_epoch']} to {attempt['last_epoch']}"
                ended = f"{attempt['reason']} (exit code {attempt['exit_code']})"
                lines.append(f"{run:<10} {job:>4} {span:>9} {attempt['wall_s']:8.1f}  {ended}")
        return "\n".join(lines) + "\n"

    def _targets(self) -> list[str]:
        # All trainings, and the report of one: what is drawn here is drawn on no node.
        trained = [f"{self.folder(run).relative_to(self.workspace.folder)}/result.json" for run in STUDY["runs"]]
        return [*trained, "results/runs/wide/ranks2/fom.json", "results/figures/wide/ranks2/seed42/dice.svg"]

    def _is_at_work(self, run: str) -> bool:
        return self.epochs(run) >= 3

    def _requeue(self, run: str) -> None:
        job = self.job(run)
        self._note(run, f"scontrol requeue {job}, after epoch {self.epochs(run)}")
        slurm("scontrol", "requeue", job)

    def _cancel(self, run: str) -> None:
        job = self.job(run)
        self._note(run, f"scancel {job}, after epoch {self.epochs(run)}")
        slurm("scancel", job)

    def _kill_rank(self, run: str) -> None:
        job = self.job(run)
        wanted = {"SLURM_JOB_ID": job, "PMI_RANK": "1"}
        (pid,) = (pid for pid in processes() if wanted.items() <= environment_of(pid).items())
        self._note(run, f"kill -9 {pid}, rank 1 of job {job}, after epoch {self.epochs(run)}")
        os.kill(pid, signal.SIGKILL)

    def _kill_node(self, run: str) -> None:
        (node,) = self.cluster.nodes[2:]
        job = self.job(run)
        # Slurm would start it again by itself, which `requeue` tries.
        slurm("scontrol", "update", f"JobId={job}", "Requeue=0")
        epoch = self.epochs(run)
        killed = self.cluster.kill_node(node)
        self._note(run, f"killed all {len(killed)} processes of node {node}, job {job}, after epoch {epoch}")

        def mend() -> None:
            self.cluster.start_node(node)
            self._note(run, f"job {job} is NODE_FAIL; started node {node} again")

        self._plan.append((lambda: _state_of(job) == "NODE_FAIL", mend))

    def _look_at_jobs(self) -> None:
        for line in slurm("scontrol", "--details", "--oneliner", "show", "jobs", check=False).stdout.splitlines():
            found = re.search(r"Comment=rule_train_wildcards_(\w+)", line)
            if found and "JobState=RUNNING" in line:
                self.jobs.setdefault(found[1], line)

    def _note(self, run: str, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._start:6.1f} s  {run:<8} {text}")


def _state_of(job: str) -> str:
    return slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()


def _rows(statistics: Path) -> int:
    with statistics.open() as file:
        return len(list(csv.reader(file))) - 1
