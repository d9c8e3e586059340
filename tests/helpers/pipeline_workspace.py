"""A folder to run Snakemake in."""

import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]

# Eight volumes of 16^3; any Dice is enough, so each training converges in its first epoch.
STUDY: dict[str, Any] = {
    "defaults": {
        "problem_scale": 4,
        "unet_bottleneck_dim": 2,
        "unet_base_channels": 2,
        "group_norm_groups": 2,
        "n_categories": 2,
        "n_instances_used_per_fractal": 12,
        "target_dice": 0.0,
        "warmup_batches": 1,
        "dataloader_num_workers": 0,
    },
    "runs": {"small": {"ranks": [1, 2], "seeds": [1]}},
}


class Workspace:
    """A working directory with a study, and the workflow that runs in it.

    Args:
        folder: the working directory.
        source: the checkout whose Snakefile, profiles and package are used.
    """

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder = folder
        self.source = source
        self.results = folder / "results"

    def write_study(self, study: dict[str, Any], file: str = "config/config.yaml") -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(study))

    def change(self, run: dict[str, Any] | None = None, **defaults: Any) -> None:
        """Rewrite the study with some keys changed."""
        study = deepcopy(STUDY)
        study["defaults"].update(defaults)
        study["runs"]["small"].update(run or {})
        self.write_study(study)

    def use_copy_of_source(self) -> Path:
        """Let the workspace have a source of its own, to be edited; return it."""
        self.source = self.folder / "source"
        for name in ("scaffold", "workflow", "profiles"):
            shutil.copytree(ROOT / name, self.source / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "Snakefile", self.source)
        return self.source

    def command(self, *arguments: str, profile: str | None = "profiles/local") -> list[str]:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(self.source / "Snakefile")]
        return [*command, *(["--profile", str(self.source / profile)] if profile else []), *arguments]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source), "OMP_NUM_THREADS": "1"}

    def snakemake(self, *arguments: str, profile: str | None = "profiles/local") -> "subprocess.CompletedProcess[str]":
        """Run Snakemake; its output, both streams, is in ``stdout``."""
        return subprocess.run(
            self.command(*arguments, profile=profile),
            cwd=self.folder, env=self.environment(), text=True, timeout=240, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def make(self, *arguments: str) -> str:
        """Run Snakemake, which must succeed; return its output."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def plan(self, *arguments: str) -> dict[str, int]:
        """Return how many jobs of each rule Snakemake would run, ``all`` left out."""
        output = self.make(*arguments, "--dry-run", "--quiet", "rules")
        table = output.partition("Job stats:")[2].partition("\n\n")[0]
        counts = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}
        assert counts or "Nothing to be done" in output, output
        return {rule: count for rule, count in counts.items() if rule not in ("all", "total")}
