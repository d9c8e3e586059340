"""A whole training with stock operations and with ours, on the same data and from the same weights.

    python benchmarks/end_to_end.py benchmarks/results/DEVICE --work /tmp/e2e --study config/scale7.yaml

Every arm is the same trainer on the same batches; `stock` has PyTorch's own modules, compiled, in its step
(`stock_training.py`), `plain` our network with every fast path switched off. The arms take turns of `--turn`
epochs, each continuing from its checkpoint, until they meet the target Dice, `--epochs` are trained or `--minutes`
are over; the same command with the same `--work` continues. After each turn are written, of all so far:

    end_to_end.csv         one row an epoch: the trainer's own columns, and the seconds of training so far
    end_to_end_starts.csv  one row a start: what it took before its first epoch, and after its last
    end_to_end.svg         validation Dice over those seconds and over epochs
    end_to_end.yaml        the study, with all its keys

Seconds of training are the trainer's own: epochs with their validation, and what training waited for checkpoints.
Compiling, capturing and warming up come before the first epoch of a start, in every arm alike, and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

import script

from scaffold import atomic, provenance
from scaffold.cli.common import at_least_one
from scaffold.config import Job, Study, dataset_name, library_name, resume_identity
from scaffold.errors import ExitCode
from scaffold.reporting import style
from scaffold.training.attempts import ATTEMPTS
from scaffold.training.restart import SWITCHES
from scaffold.training.workdir import work_path
from scaffold.training.worker import STATISTICS

TRAIN = ("-m", "scaffold", "train")
STOCK = (str(Path(__file__).with_name("stock_training.py")),)
OFF = dict.fromkeys(SWITCHES, "0")

_LEAST_MINUTES = 0.1
"""A start in less would end before its first epoch."""


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: how the figure calls it.
        command: what Python runs; takes the arguments of ``scaffold train``.
        environment: laid over the process's own.
    """

    label: str
    command: tuple[str, ...] = TRAIN
    environment: dict[str, str] = field(default_factory=dict)


ARMS = {
    "ours": Arm("ours"),
    "stock": Arm("stock, compiled", STOCK, OFF),
    "plain": Arm("ours, fast paths off", environment=OFF),
}
COLOURS = dict(zip(ARMS, (style.BLUE, style.ORANGE, style.GREEN), strict=True))


def python(*arguments: object, environment: dict[str, str] | None = None, accept: Sequence[int] = (0,)) -> int:
    """Run Python with these arguments; return its exit code, one of ``accept``."""
    command = [sys.executable, *map(str, arguments)]
    code = subprocess.run(command, env=os.environ | (environment or {})).returncode
    if code not in accept:
        sys.exit(f"{' '.join(command)} ended with exit code {code}")
    return code


def scaffold(verb: str, *arguments: object) -> None:
    """Run one verb."""
    python("-m", "scaffold", verb, *arguments)


def make_data(study: Path, job: Job, work: Path) -> Path:
    """Make the data set of a job where it is not there yet; return its meta.yaml."""
    library, dataset = library_name(job.config), dataset_name(job.config)
    fractals, data = work / "fractals" / library, work / "datasets" / dataset
    meta = data / "meta.yaml"
    if meta.exists():
        return meta
    common = ["--config", study, "--library", library]
    cores = os.cpu_count() or 1

    def instances(category: int) -> None:
        output = fractals / "instances" / f"{category}.npy"
        scaffold("instances", *common, "--categories", fractals / "categories.csv", "--category", category,
                 "--output", output, "--threads", max(cores // job.config.n_categories, 1))  # fmt: skip

    def render(part: int) -> None:
        scaffold("render", "--config", study, "--dataset", dataset, "--part", part,
                 "--instances", fractals / "instances", "--output", data / "parts" / f"{part:04d}")  # fmt: skip

    scaffold("search", *common, "--output", fractals, "--threads", cores)
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(instances, range(job.config.n_categories)))
        list(pool.map(render, range(job.config.n_parts)))
    scaffold("publish", "--config", study, "--dataset", dataset, "--parts", data / "parts", "--output", meta)
    return meta


@dataclass
class Training:
    """The training of one arm.

    Attributes:
        arm: its name.
        job: what is trained.
        study: the study file, which names the job's run.
        meta: ``meta.yaml`` of the data set.
        output: where its results go.
    """

    arm: str
    job: Job
    study: Path
    meta: Path
    output: Path

    @property
    def work(self) -> Path:
        """Its work folder."""
        return work_path(self.output, resume_identity(self.job.config))

    @property
    def epochs(self) -> pd.DataFrame:
        """The epochs so far, as the trainer writes them, with the seconds of training up to the end of each."""
        path = self.work / STATISTICS
        if not path.exists():
            return pd.DataFrame({"epoch": [], "val_dice": []})
        table = pd.read_csv(path)
        table["training_s"] = (table["epoch_duration"] + table["checkpoint_stall"]).cumsum()
        return table

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return bool((self.epochs["val_dice"] >= self.job.config.target_dice).any())

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """What the trainer recorded of each start."""
        path = self.work / ATTEMPTS
        return list(json.loads(path.read_text())) if path.exists() else []

    def train(self, until: int, minutes: float) -> bool:
        """Go on until epoch ``until``, or stop in time; return whether it came so far."""
        code = python(
            *ARMS[self.arm].command, "--config", self.study, "--run", self.job.run, "--seed", self.job.seed,
            "--ranks", 1, "--data", self.meta, "--output", self.output,
            "--set", f"epochs={until}", "--set", f"max_runtime={minutes:.3f}",
            environment=ARMS[self.arm].environment, accept=(0, ExitCode.RUN_AGAIN),
        )  # fmt: skip
        return code == 0

    def rows(self) -> pd.DataFrame:
        """Return the epochs so far with what they were measured on."""
        table = self.epochs
        table.insert(0, "arm", self.arm)
        table.insert(1, "run", self.job.run)
        table.insert(2, "seed", self.job.seed)
        for attempt in self.attempts:
            if attempt["first_epoch"] is None:
                continue
            mine = table["epoch"] >= attempt["first_epoch"]
            table.loc[mine, "device"] = attempt["world"]["device"]
            table.loc[mine, "started_at"] = attempt["start"]
        return table

    def starts(self) -> pd.DataFrame:
        """Return one row for each start: its epochs, and the wall time around them once Python had started."""
        epochs = self.epochs.set_index("epoch")
        rows = []
        for attempt in self.attempts:
            first, last = attempt["first_epoch"], attempt["last_epoch"]
            mine = epochs.loc[first:last] if first and last else epochs.iloc[:0]
            counted = float((mine["epoch_duration"] + mine["checkpoint_stall"]).sum()) if len(mine) else 0.0
            rows.append(
                {
                    "arm": self.arm, "started_at": attempt["start"], "first_epoch": first, "last_epoch": last,
                    **(attempt["setup"] or {}),
                    "training_s": counted, "wall_s": attempt["wall_s"], "ending": attempt["ending"],
                }
            )  # fmt: skip
        return pd.DataFrame(rows)


def write(trainings: Sequence[Training], output: Path) -> None:
    """Write the tables and the figure of all that was trained so far."""
    made = {"commit": str(provenance.stamp()["commit"]), **provenance.library_versions()}
    rows = pd.concat([training.rows() for training in trainings if len(training.epochs)])
    atomic.write_text(output / "end_to_end.csv", rows.assign(**made).to_csv(index=False))
    starts = pd.concat([training.starts() for training in trainings if training.attempts])
    atomic.write_text(output / "end_to_end_starts.csv", starts.to_csv(index=False))
    draw(rows, trainings[0].job, output / "end_to_end.svg")


def draw(rows: pd.DataFrame, job: Job, path: Path) -> None:
    """Draw validation Dice of each arm over the seconds of training and over epochs, with the target."""
    config = job.config
    subtitle = (
        f"{config.vol_size}³ voxels · batch {config.local_batch_size} · seed {job.seed} · the same data, order and"
        f" initial weights · {rows['device'].iloc[-1]}"
    )
    with style.figure(path, "Whole trainings: ours and stock PyTorch", subtitle, (9.4, 3.9)) as drawing:
        left, right = drawing.subplots(1, 2, sharey=True)
        for axes, column, label in ((left, "training_s", "seconds of training"), (right, "epoch", "epoch")):
            target = axes.axhline(config.target_dice, color=style.VERMILION, linewidth=1.2, linestyle=(0, (5, 3)))
            for arm, table in rows.groupby("arm", sort=False):
                name = str(arm)
                axes.plot(table[column], table["val_dice"], marker="o", color=COLOURS[name], label=ARMS[name].label)
            axes.set_xlim(left=0)
            axes.set_xlabel(label)
        target.set_label(f"target {config.target_dice:g}")
        left.set_ylabel("validation Dice")
        right.legend(loc="lower right")


def summary(training: Training) -> str:
    """Return in a line how far an arm came, and what its starts cost."""
    rows, target = training.epochs, training.job.config.target_dice
    if rows.empty:
        return f"{training.arm}: nothing trained"
    met = rows[rows["val_dice"] >= target]
    reached = f"met {target:g} in epoch {met['epoch'].iloc[0]}" if len(met) else f"did not meet {target:g}"
    starts = training.starts()
    outside = (starts["wall_s"] - starts["training_s"]).tolist()
    return (
        f"{training.arm}: {len(rows)} epochs, {reached}, validation Dice {rows['val_dice'].iloc[-1]:.4f}"
        f" (best {rows['val_dice'].max():.4f}); {rows['training_s'].iloc[-1]:.1f} s of training;"
        f" an epoch {rows['epoch_duration'].median():.2f} s, of it validation {rows['val_duration'].median():.2f};"
        f" a checkpoint {rows['checkpoint_stall'].median():.2f} s;"
        f" a step {rows['minibatch_duration'].median() * 1e3:.2f} ms;"
        f" starts, each: {', '.join(f'{seconds:.0f}' for seconds in outside)} s"
    )


def take_turns(trainings: Sequence[Training], epochs: int, turn: int, deadline: float, output: Path) -> None:
    """Train the arms in turns, in their order, and write what they have reached after each turn."""
    for until in range(turn, epochs + turn, turn):
        for training in trainings:
            goal = min(until, epochs)
            if training.met or len(training.epochs) >= goal:
                continue
            minutes = (deadline - time.monotonic()) / 60
            if minutes <= _LEAST_MINUTES:
                return
            training.train(goal, minutes)
            write(trainings, output)
            print(summary(training), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all arms and write what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder for the tables and the figure")
    parser.add_argument("--work", type=Path, required=True, help="folder for data sets and checkpoints")
    parser.add_argument("--study", type=Path, default=Path("config/scale7.yaml"))
    parser.add_argument("--run", default=None)
    parser.add_argument("--arms", nargs="+", default=["ours", "stock"], choices=list(ARMS))
    parser.add_argument("--epochs", type=at_least_one, default=200, help="most epochs of each arm")
    parser.add_argument(
        "--turn", type=at_least_one, default=10, help="epochs that an arm trains before the next one does"
    )
    parser.add_argument("--minutes", type=float, default=600.0, help="time of all trainings together")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys laid over the study")
    options = parser.parse_args(arguments)
    study = Study.load(options.study, options.set)
    chosen = study.run(options.run)
    job = next(job for job in study.jobs() if job.config is chosen.config)
    resolved = options.work / "study.yaml"
    atomic.write_yaml(resolved, study.to_mapping())
    meta = make_data(resolved, job, options.work)
    atomic.write_yaml(options.output / "end_to_end.yaml", study.to_mapping())
    trainings = [Training(arm, job, resolved, meta, options.work / "runs" / arm) for arm in options.arms]
    take_turns(trainings, options.epochs, options.turn, time.monotonic() + 60 * options.minutes, options.output)
    for training in trainings:
        print(summary(training))


if __name__ == "__main__":
    script.run(main)
