"""All runs of a study in one table: ``results/summary.csv``, and its reading at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from scaffold import atomic
from scaffold.errors import DamagedFileError, UserError
from scaffold.remedy import rebuild_command
from scaffold.reporting import kernels
from scaffold.reporting.fom import FigureOfMerit, headline, read_fom

SHOWN = {
    "run": "run",
    "ranks": "ranks",
    "seeds": "seeds",
    "time_to_target_s": "time to target (s)",
    "llnl_fom": "LLNL FOM (1/s)",
    "epochs": "epochs",
    "epoch_s": "s/epoch",
    "steps_per_s": "steps/s",
    "samples_per_s": "samples/s",
    "speed_up": "speed-up",
    "parallel_efficiency": "efficiency",
}
"""Columns that a reader is shown -> their titles."""


def summary(figures: Iterable[FigureOfMerit]) -> pd.DataFrame:
    """Return one row per run and rank count, in the order given, ranks ascending within a run.

    ``speed_up`` is the time to target on the run's smallest rank count over this row's, and
    ``parallel_efficiency`` that divided by the ratio of the rank counts; ``epoch_speed_up`` is the
    same of the time per epoch, which exists without a figure of merit too. Medians over seeds,
    seconds; empty where there is no figure of merit.
    """
    rows = [_row(figure) for figure in figures]
    if not rows:
        raise UserError("no fom.json was named: a summary needs at least one")
    order = {run: i for i, run in enumerate(dict.fromkeys(row["run"] for row in rows))}
    rows.sort(key=lambda row: (order[row["run"]], row["ranks"]))
    table = pd.DataFrame(rows)
    smallest = table.groupby("run", sort=False)
    table["speed_up"] = smallest.time_to_target_s.transform(_first) / table.time_to_target_s
    table["parallel_efficiency"] = table.speed_up * smallest.ranks.transform(_first) / table.ranks
    table["epoch_speed_up"] = smallest.epoch_s.transform(_first) / table.epoch_s
    return table


def write_summary(foms: Iterable[Path], output: Path) -> pd.DataFrame:
    """Read every ``fom.json`` of a study and write ``output`` (CSV)."""
    table = summary([read_fom(path) for path in foms])
    atomic.write_text(output, table.to_csv(index=False, lineterminator="\n"))
    return table


def read_summary(path: Path) -> pd.DataFrame:
    """Read a ``summary.csv``.

    Raises:
        UserError: there is no such file.
        DamagedFileError: it is not a summary.
    """
    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; make it with: {rebuild_command(path)}") from error
    except (OSError, ValueError) as error:
        raise DamagedFileError(path, f"is not a table ({error})", rebuild_command(path)) from error
    lacking = [name for name in (*SHOWN, "headline") if name not in table.columns]
    if lacking or table.empty:
        problem = f"lacks the column {lacking[0]}" if lacking else "has no row"
        raise DamagedFileError(path, problem, rebuild_command(path))
    return table


def show_summary(path: Path, console: Console) -> None:
    """Print the summary at ``path``: the table, the figures of merit, and where to look further."""
    table = read_summary(path)
    console.print(_rich_table(table))
    console.print()
    for text in table.headline:
        console.print(text, style="bold", highlight=False, soft_wrap=True)
    results = path.parent
    drawn = [str(path.parent) for pattern in ("*.svg", "*.png") for path in results.rglob(pattern)]
    if drawn:
        console.print(f"\nfigures: {os.path.commonpath(drawn)}/", highlight=False, soft_wrap=True)
    report = results / "report.html"
    fresh = report.exists() and report.stat().st_mtime >= path.stat().st_mtime
    # The summary may be of another study than the one that `make report` takes by itself.
    make = f"{'older than this; ' if report.exists() else ''}make report STUDY={results / 'study.yaml'}"
    console.print(f"report:  {report if fresh else make}", highlight=False, soft_wrap=True)


def _row(figure: FigureOfMerit) -> dict[str, Any]:
    time, fom = figure.time_to_target_s, figure.llnl_fom
    return {
        "run": figure.run,
        "ranks": figure.ranks,
        "seeds": len(figure.seeds),
        "converged_seeds": sum(seed.converged for seed in figure.seeds),
        "time_to_target_s": time.median if time else float("nan"),
        "time_to_target_min_s": time.min if time else float("nan"),
        "time_to_target_max_s": time.max if time else float("nan"),
        "llnl_fom": fom.median if fom else float("nan"),
        "epochs": figure.epochs.median,
        "epoch_s": figure.epoch_s.median,
        "steps_per_s": figure.steps_per_s.median,
        "samples_per_s": figure.samples_per_s.median,
        "minibatch_time_s": figure.minibatch_time_s.median if figure.minibatch_time_s else float("nan"),
        "lost_s": sum(seed.lost_s for seed in figure.seeds),
        "attempts": sum(seed.attempts for seed in figure.seeds),
        "global_batch": figure.global_batch,
        "parameters": figure.parameters,
        "device": figure.world.device,
        "hosts": figure.world.hosts,
        "backend": figure.world.backend,
        "threads": figure.world.threads,
        "kernels": kernels.in_words(figure.kernels),
        "commit": " ".join(figure.commits),
        "dataset": figure.dataset.name,
        "dataset_digest": figure.dataset.digest,
        "must_match": figure.must_match_hash,
        "headline": headline(figure),
    }


def _first(column: pd.Series[float]) -> float:
    """Return the value of the smallest rank count: rows are sorted by ranks."""
    return float(column.iloc[0])


def _rich_table(table: pd.DataFrame) -> Table:
    shown = Table(box=None, pad_edge=False)
    for title in SHOWN.values():
        shown.add_column(title, justify="left" if title == "run" else "right", no_wrap=True)
    for _, row in table.iterrows():
        shown.add_row(*(cell(row[name]) for name in SHOWN))
    return shown


def cell(value: Any) -> str:
    """Return a value as a table shows it: four digits, and a dash for what there is not."""
    if isinstance(value, float):
        return "-" if pd.isna(value) else f"{value:.4g}"
    return str(value)
