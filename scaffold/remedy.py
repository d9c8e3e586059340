"""The command that a message gives to someone whose file of the workflow is damaged or missing."""

from __future__ import annotations

from pathlib import Path

RESULTS = "results"


def rebuild_command(path: Path) -> str:
    """Return the command that makes ``path`` anew, and nothing else, named as the workflow names it.

    The study is the resolved one that lies beside all results: the workflow's default would not know
    the files of another.
    """
    names = path.absolute().parts
    if RESULTS in names:
        last = len(names) - 1 - names[::-1].index(RESULTS)
        path = Path(*names[last:])
    return f"snakemake --profile profiles/local --configfile {RESULTS}/study.yaml --force {path}"
