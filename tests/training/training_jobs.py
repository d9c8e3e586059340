"""Whole trainings as a user starts them, on a data set of 16 volumes of 16^3."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from launching import mpiexec

from scaffold import atomic
from scaffold.config import Study
from scaffold.dataset.layout import part_directory
from scaffold.dataset.publish import publish
from scaffold.dataset.render import render_part
from scaffold.parallel.team import Solo
from scaffold.records import TIME_COLUMNS

FAULTY = Path(__file__).with_name("faulty.py")
STUDY = {
    "problem_scale": 4, "unet_bottleneck_dim": 3, "unet_base_channels": 8, "n_categories": 2,
    "n_instances_used_per_fractal": 24, "warmup_batches": 1, "dataloader_num_workers": 0,
    "epochs": 4, "target_dice": 1.0, "ranks": [1, 2, 4], "seeds": [1],
}  # fmt: skip
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE", "PMI_RANK")
_made: list[Path] = []
_undisturbed: dict[int, Path] = {}


def dataset(factory) -> Path:
    """Return the folder of the data set, with a ``study.yaml``; made once per test session."""
    if not _made:
        folder = factory.mktemp("data")
        config = study(folder / "study.yaml").run("tiny").config
        clouds = np.random.default_rng(1).random((2, 145, config.point_num, 3), np.float32)
        for category, cloud in enumerate(clouds):
            (folder / "instances").mkdir(exist_ok=True)
            np.save(folder / "instances" / f"{category}.npy", cloud)
        parts = folder / "parts"
        for part in range(config.n_parts):
            render_part(config, part, folder / "instances", part_directory(parts, part), Solo())
        publish(config, parts, folder / "meta.yaml")
        _made.append(folder)
    return _made[0]


def study(path: Path, **keys) -> Study:
    """Write a study with the run "tiny", and return it."""
    atomic.write_yaml(path, {"runs": {"tiny": STUDY | keys}})
    return Study.load(path)


def train(data: Path, output: Path, ranks: int = 1, fault: str = "none 0 0", launcher: str = "mpi", **options):
    """Train as from a shell; return the finished process.

    Args:
        data: what :func:`dataset` returned.
        output: of the run.
        ranks: given to the launcher and to ``--ranks``, unless ``options`` say otherwise.
        fault: see faulty.py.
        launcher: "mpi", "torchrun" or "none".
        options: further options of the verb, ``launched``, the launcher's number of ranks, and
            ``launcher_prefix``, what the verb is told that it was launched with.
    """
    command, environment = command_of(data, output, ranks, launcher, **options)
    environment["FAULT"] = fault
    # A session of its own, so that a fault which signals the whole group spares the tests.
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, start_new_session=True)


def command_of(data: Path, output: Path, ranks: int, launcher: str, **options) -> tuple[list[str], dict[str, str]]:
    """Return the command of :func:`train`, and its environment without the fault."""
    launched = str(options.pop("launched", ranks))
    if "launcher_prefix" in options:
        options["launcher"] = options.pop("launcher_prefix")
    arguments = {"config": data / "study.yaml", "data": data / "meta.yaml", "output": output, "ranks": ranks, **options}
    verb = ["train", *(text for name, value in arguments.items() for text in (f"--{name}", str(value)))]
    here = Path(sys.executable)
    start = {
        "mpi": lambda: [mpiexec(), "-n", launched, here, "-m", "mpi4py", FAULTY],
        "none": lambda: [here, FAULTY],
        "torchrun": lambda: [here, "-m", "torch.distributed.run", "--nproc-per-node", launched, FAULTY],
    }[launcher]()
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return [str(part) for part in [*start, *verb]], environment


def undisturbed(data: Path, factory, ranks: int) -> Path:
    """Return the output of an uninterrupted training on ``ranks`` ranks; made once per test session."""
    if ranks not in _undisturbed:
        output = factory.mktemp("undisturbed")
        done = train(data, output, ranks)
        assert done.returncode == 0, done.stderr
        _undisturbed[ranks] = output
    return _undisturbed[ranks]


def rows(output: Path) -> list[dict[str, str]]:
    """Return ``train_stats.csv`` without what measures time: its exact text, which must not depend on interruptions."""
    with open(output / "train_stats.csv", newline="") as file:
        return [{k: v for k, v in line.items() if k not in TIME_COLUMNS} for line in csv.DictReader(file)]


def result(output: Path) -> dict:
    """Return ``result.json``."""
    return json.loads((output / "result.json").read_text())


def work(output: Path) -> Path:
    """Return the one work folder of a run."""
    (folder,) = (output / "work").iterdir()
    return folder
