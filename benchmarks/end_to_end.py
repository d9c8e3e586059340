"""A whole training with stock operations and with ours, on the same data and from the same seed.

    python benchmarks/end_to_end.py benchmarks/results/DEVICE --work /tmp/e2e --study config/scale7.yaml

The arms are the same trainer; in `stock` every fast path is switched off by its environment variable, so
that PyTorch's own operations run. An arm trains to the target Dice or until its share of the time is over,
and continues from its checkpoint when the same command is given again with the same `--work`. What all
arms have trained so far is written to `end_to_end.csv`: one row an epoch, the trainer's own columns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from scaffold import atomic, provenance
from scaffold.config import Job, Study, dataset_name, library_name
from scaffold.training.restart import SWITCHES

ARMS: dict[str, dict[str, str]] = {"ours": {}, "stock": dict.fromkeys(SWITCHES, "0")}
"""Environment of each arm, laid over the process's own."""


def scaffold(*arguments: object, environment: dict[str, str] | None = None, accept: Sequence[int] = (0,)) -> int:
    """Run one verb; return its exit code, one of ``accept``."""
    command = [sys.executable, "-m", "scaffold", *map(str, arguments)]
    code = subprocess.run(command, env=os.environ | (environment or {})).returncode
    if code not in accept:
        sys.exit(f"{' '.join(command)} ended with exit code {code}")
    return code


def make_data(study: Path, job: Job, work: Path) -> Path:
    """Make the data set of a job where it is not there yet; return its meta.yaml."""
    library, dataset = library_name(job.config), dataset_name(job.config)
    fractals, data = work / "fractals" / library, work / "datasets" / dataset
    meta = data / "meta.yaml"
    if meta.exists():
        return meta
    common = ["--config", study, "--library", library]
    threads = ["--threads", os.cpu_count() or 1]
    scaffold("search", *common, "--output", fractals, *threads)
    for category in range(job.config.n_categories):
        output = fractals / "instances" / f"{category}.npy"
        scaffold("instances", *common, "--categories", fractals / "categories.csv", "--category", category,
                 "--output", output, *threads)  # fmt: skip
    for part in range(job.config.n_parts):
        scaffold("render", "--config", study, "--dataset", dataset, "--part", part,
                 "--instances", fractals / "instances", "--output", data / "parts" / f"{part:04d}")  # fmt: skip
    scaffold("publish", "--config", study, "--dataset", dataset, "--parts", data / "parts", "--output", meta)
    return meta


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all arms for their share of the time and write what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder for end_to_end.csv")
    parser.add_argument("--work", type=Path, required=True, help="folder for data sets and checkpoints")
    parser.add_argument("--study", type=Path, default=Path("config/scale7.yaml"))
    parser.add_argument("--run", default=None)
    parser.add_argument("--minutes", type=float, nargs="+", default=[4.0], help="time of each arm, or one for all")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys laid over the study")
    options = parser.parse_args(arguments)
    study = Study.load(options.study, options.set)
    job = next(job for job in study.jobs() if options.run in (None, job.run))
    resolved = options.work / "study.yaml"
    atomic.write_yaml(resolved, study.to_mapping())
    meta = make_data(resolved, job, options.work)
    minutes = dict(
        zip(options.arms, options.minutes * (len(options.arms) if len(options.minutes) == 1 else 1), strict=True)
    )
    tables = []
    for arm in options.arms:
        folder = options.work / "runs" / arm
        scaffold("train", "--config", resolved, "--run", job.run, "--seed", job.seed, "--ranks", 1, "--data", meta,
                 "--output", folder, "--minutes", minutes[arm], environment=ARMS[arm], accept=(0, 75))  # fmt: skip
        (statistics,) = [*folder.glob("train_stats.csv"), *folder.glob("work/*/train_stats.csv")][:1]
        tables.append(pd.read_csv(statistics).assign(arm=arm, run=job.run, seed=job.seed))
        made = {key: str(provenance.stamp()[key]) for key in ("commit",)} | provenance.library_versions()
        atomic.write_text(options.output / "end_to_end.csv", pd.concat(tables).assign(**made).to_csv(index=False))
    for arm, table in zip(options.arms, tables, strict=True):
        dice, epochs_s = table["val_dice"].iloc[-1], table["epoch_duration"].sum()
        step_ms = table["minibatch_duration"].median() * 1e3
        print(f"{arm}: {len(table)} epochs, validation Dice {dice:.4f}, {epochs_s:.1f} s, {step_ms:.2f} ms a step")


if __name__ == "__main__":
    main()
