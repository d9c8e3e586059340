"""Time to target and throughput over rank counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from scaffold.reporting import style
from scaffold.reporting.fom import FigureOfMerit, Spread

_SIZE = (8.6, 4.2)


def draw_scaling(figures: Sequence[FigureOfMerit], path: Path) -> None:
    """Draw, over ranks, the time to target and the training samples per second of every run.

    Dots are medians over the seeds, bars reach from the least to the greatest; the dashed line is
    what the smallest rank count would become if N times the ranks were N times as fast.

    Args:
        figures: of one study, in any order.
        path: figure to write.
    """
    runs = {run: sorted((f for f in figures if f.run == run), key=lambda f: f.ranks) for run in _runs(figures)}
    devices = " / ".join(sorted({figure.world.device for figure in figures}))
    with style.figure(path, "Scaling over ranks", f"{devices} · dashed: ideal", _SIZE) as drawing:
        left, right = drawing.subplots(1, 2)
        for (run, points), colour in zip(runs.items(), style.CYCLE * (len(runs) // len(style.CYCLE) + 1), strict=False):
            _series(left, points, lambda f: f.time_to_target_s, -1, run, colour)
            _series(right, points, lambda f: f.samples_per_s, 1, run, colour)
        _finish(left, figures, "time to target (s)")
        _finish(right, figures, "training samples per second")
        if not left.lines:
            left.text(0.5, 0.5, "no run has a figure of merit", transform=left.transAxes, ha="center")
        right.legend(loc="upper left", title="run", alignment="left")


def _runs(figures: Sequence[FigureOfMerit]) -> list[str]:
    return list(dict.fromkeys(figure.run for figure in figures))


def _series(
    axes: Axes,
    figures: Sequence[FigureOfMerit],
    quantity: Callable[[FigureOfMerit], Spread | None],
    ideal_power: int,
    label: str,
    colour: str,
) -> None:
    measured = [(figure.ranks, spread) for figure in figures if (spread := quantity(figure)) is not None]
    if not measured:
        return
    ranks = np.array([count for count, _ in measured], float)
    median, least, greatest = (
        np.array([getattr(spread, name) for _, spread in measured]) for name in ("median", "min", "max")
    )
    axes.errorbar(
        ranks, median, [median - least, greatest - median],
        color=colour, marker="o", capsize=3, elinewidth=1.2, label=label,
    )  # fmt: skip
    axes.plot(ranks, median[0] * (ranks / ranks[0]) ** ideal_power, color=colour, linewidth=1, linestyle=(0, (4, 3)))


def _finish(axes: Axes, figures: Sequence[FigureOfMerit], label: str) -> None:
    counts = sorted({figure.ranks for figure in figures})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("ranks")
    axes.set_title(label)
