"""What a large study costs before any of its jobs runs: Snakemake's time to plan it.

    python benchmarks/planning.py benchmarks/results/DEVICE/planning.csv

Two studies of 300 runs: in ``shared`` they differ in the training alone and share one data set of the default
size, in ``own`` each has a small one of its own (two categories, one part: five jobs). Three commands each: a dry
run of the study when nothing is made, a dry run when all is, and the run that finds nothing to do. To have all
made, every output is an empty file (``result.json`` with the identity that is looked for) whose making Snakemake
has recorded.

Planning uses one core. ``cpu_s``, its processor time, does not depend on what else runs on the machine; ``wall_s``
does, and is the one that a user of an idle machine waits for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

import script
from tables import write_with_conditions

from scaffold import study_files
from scaffold.cli.common import at_least_one
from scaffold.config import Study, training_identity

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("study", "runs", "state", "command", "jobs", "cpu_s", "cpu_low_s", "cpu_high_s", "wall_s")
COMMANDS = {"dry run": ("--dry-run", "--quiet", "rules"), "run": ("--quiet", "all")}


def studies(runs: int) -> dict[str, dict[str, Any]]:
    """Return both studies, as their files have them."""
    small = {"problem_scale": 4, "unet_bottleneck_dim": 2, "n_categories": 2, "n_instances_used_per_fractal": 12}
    return {
        "shared": {"runs": {f"run{i:03d}": {"starting_learning_rate": 0.001 + i * 1e-6} for i in range(runs)}},
        "own": {"defaults": small, "runs": {f"run{i:03d}": {"seed": i} for i in range(runs)}},
    }


def snakemake(folder: Path, *arguments: str) -> tuple[str, float, float]:
    """Run Snakemake in ``folder``; return its output, its processor time and its wall time, seconds."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--profile", str(ROOT / "profiles" / "local"), "--configfile", "study.yaml", *arguments]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + done.stderr, cpu, wall


def finish(folder: Path) -> None:
    """Make every output of the study in ``folder``, empty, and have Snakemake record that it made them."""
    listing, _, _ = snakemake(folder, "--summary")
    for line in listing.splitlines():
        if line.startswith("results/"):
            path = folder / line.partition("\t")[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for job in Study.load(folder / "study.yaml").jobs():
        result = study_files.training_folder(folder / "results", job) / "result.json"
        result.write_text(json.dumps({"training_identity": training_identity(job.config)}))
    snakemake(folder, "--touch", "--forceall", "--quiet", "all")


def measure(name: str, runs: int, folder: Path, repeats: int) -> Iterator[dict[str, object]]:
    """Yield the rows of one study."""
    jobs = 0
    for state, command in (("nothing made", "dry run"), ("all made", "dry run"), ("all made", "run")):
        if state == "all made" and not (folder / "results").exists():
            finish(folder)
        times = []
        for _ in range(repeats):
            output, cpu, wall = snakemake(folder, *COMMANDS[command])
            times.append((cpu, wall))
            if state == "nothing made":
                jobs = int(re.findall(r"^total +(\d+)$", output, re.MULTILINE)[-1])
            if state == "all made" and command == "dry run" and "Nothing to be done" not in output:
                raise SystemExit(f"{name}: something is left to be done:\n{output}")
        cpu_s, wall_s = zip(*times, strict=True)
        yield {
            "study": name,
            "runs": runs,
            "state": state,
            "command": command,
            "jobs": jobs,
            "cpu_s": f"{statistics.median(cpu_s):.2f}",
            "cpu_low_s": f"{min(cpu_s):.2f}",
            "cpu_high_s": f"{max(cpu_s):.2f}",
            "wall_s": f"{statistics.median(wall_s):.2f}",
        }


def main() -> None:
    """Measure both studies and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("output", type=Path, metavar="FILE", help="CSV to write; a .json goes beside it")
    parser.add_argument("--runs", type=at_least_one, default=300, metavar="N", help="runs of each study (default: 300)")
    parser.add_argument("--repeats", type=at_least_one, default=5, metavar="N", help="of each command (default: 5)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the studies go; best in memory")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        for name, study in studies(arguments.runs).items():
            folder = Path(scratch) / name
            folder.mkdir()
            (folder / "study.yaml").write_text(yaml.safe_dump(study))
            for row in measure(name, arguments.runs, folder, arguments.repeats):
                print(*(f"{key} {value};" for key, value in row.items()), flush=True)
                rows.append(row)
    write_with_conditions(arguments.output, COLUMNS, rows)


if __name__ == "__main__":
    script.run(main)
