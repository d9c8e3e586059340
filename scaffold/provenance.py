"""Who made this file: versions, commit, host and time, for every result file."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from scaffold import __version__

_LIBRARIES = ("numpy", "numba", "torch", "triton", "mpi4py", "snakemake")


def now() -> str:
    """Return the present time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str:
    """Return the commit of the source tree that this package was imported from.

    ``no-commit-id`` when the package does not lie in a git checkout of its own, ``-dirty`` appended
    when tracked files differ from the commit. The working directory plays no part.
    """
    source = Path(__file__).resolve().parent.parent
    if not (source / ".git").exists():
        return "no-commit-id"
    try:
        revision = _git(source, "rev-parse", "--short=12", "HEAD")
        dirty = _git(source, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "no-commit-id"
    return f"{revision}-dirty" if dirty else revision


def stamp() -> dict[str, Any]:
    """Return what every result file records of its making (plain JSON types)."""
    return {
        "scaffold": __version__,
        "commit": commit(),
        "created_at": now(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": library_versions(),
    }


@cache
def cpu_name() -> str:
    """Return the processor's name as Linux gives it, or what Python knows of it elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that can change a result, without importing them."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(source: Path, *arguments: str) -> str:
    # Another user's checkout (a site's, or a host's seen from a container) git would refuse to look at.
    trusted = ["-c", f"safe.directory={source}"]
    command = ["git", "--no-optional-locks", *trusted, "-C", str(source), *arguments]
    # Inside a git hook these would point git at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=environment)
    return run.stdout.strip()
