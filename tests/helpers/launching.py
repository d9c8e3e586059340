"""Starting a verb on several ranks, as a user does. Every test can import this: see pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def mpiexec() -> str:
    """Return the mpiexec beside this Python, else that on PATH.

    Without one the test fails: skipped, "the same bytes on any number of ranks" would go unchecked unseen.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.fail("there is no mpiexec, neither beside this Python nor on PATH: pip install -e '.[mpich]'")
    return found


def scaffold_on(ranks: int, verb: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``scaffold verb arguments --ranks N`` on N ranks; return the finished process."""
    command = [mpiexec(), "-n", ranks, sys.executable, "-m", "mpi4py", "-m", "scaffold", verb, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [str(part) for part in [*command, "--ranks", ranks]],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
