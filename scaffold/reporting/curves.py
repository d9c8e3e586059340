"""Curves of one training over its epochs: loss, Dice and time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from scaffold.records import Result
from scaffold.reporting import style

_SIZE = (7.4, 4.2)
_MARKED = 40
"""Up to this many epochs each is marked by a dot; beyond, the dots would hide the line."""


def draw_loss(stats: pd.DataFrame, result: Result, path: Path) -> None:
    """Draw training and validation loss over epochs, logarithmic.

    Args:
        stats: as :func:`scaffold.reporting.results.read_stats` returns it.
        result: the same training's.
        path: figure to write.
    """
    with style.figure(path, f"Loss · {style.name(result)}", style.conditions(result), _SIZE) as drawing:
        axes = drawing.subplots()
        _line(axes, stats, "overall_loss", "training", style.BLUE)
        _line(axes, stats, "val_loss_avg", "validation", style.ORANGE)
        axes.set_yscale("log")
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(plain)
        # Within one decade the powers of ten alone would leave the axis without a number.
        axes.yaxis.set_minor_formatter(NullFormatter() if _decades(stats) > 1 else plain)
        axes.set_ylabel("cross entropy + 1 - soft Dice")
        _finish(axes, stats, result)


def draw_dice(stats: pd.DataFrame, result: Result, path: Path) -> None:
    """Draw training (soft) and validation (hard) Dice over epochs, with the target. Arguments as above."""
    target = result.settings.target_dice
    with style.figure(path, f"Dice · {style.name(result)}", style.conditions(result), _SIZE) as drawing:
        axes = drawing.subplots()
        axes.axhline(target, color=style.VERMILION, linewidth=1.2, linestyle=(0, (5, 3)), label=f"target {target:g}")
        _line(axes, stats, "train_dice", "training (soft)", style.BLUE)
        _line(axes, stats, "val_dice", "validation (hard)", style.ORANGE)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("mean foreground Dice")
        last = stats.iloc[-1]
        reached = "reached" if result.converged else "ended at"
        seconds = result.epoch_time_s + result.checkpoint_stall_s
        _finish(axes, stats, result, f"{reached} {last.val_dice:.4f}\nin epoch {last.epoch:.0f}, {seconds:.4g} s")


def draw_time(stats: pd.DataFrame, result: Result, path: Path) -> None:
    """Draw where the time of each epoch went, and the time of a step where it was measured."""
    step_ms = stats.minibatch_duration * 1e3
    measured = bool(step_ms.notna().any())
    height = _SIZE[1] + (1.8 if measured else 0)
    with style.figure(path, f"Time · {style.name(result)}", style.conditions(result), (_SIZE[0], height)) as drawing:
        if measured:
            upper, axes = drawing.subplots(2, sharex=True, height_ratios=(1, 2))
            _line(upper, stats.assign(step_ms=step_ms), "step_ms", "step", style.BLUE)
            upper.set_ylim(0, 1.15 * step_ms.max())
            upper.set_ylabel("step (ms)")
        else:
            axes = drawing.subplots()
        _breakdown(axes, stats)
        axes.set_ylabel("time of an epoch (s)")
        _finish(axes, stats, result)


def breakdown(stats: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return the parts that the time of each epoch and its checkpoint is made of, seconds, all >= 0.

    Waiting for data is a part of the training time that the statistics give; here it stands alone.
    """
    rest = stats.epoch_duration - stats.train_duration - stats.val_duration
    return {
        "training": (stats.train_duration - stats.data_duration).clip(lower=0),
        "waiting for data": stats.data_duration,
        "validation": stats.val_duration,
        "other": rest.clip(lower=0),
        "checkpoint stall": stats.checkpoint_stall,
    }


def _breakdown(axes: Axes, stats: pd.DataFrame) -> None:
    parts = breakdown(stats)
    colours = (style.BLUE, style.SKY, style.ORANGE, style.FAINT, style.VERMILION)
    width = 0.86 if len(stats) <= _MARKED else 1.0
    bottom = np.zeros(len(stats))
    total = sum(part.sum() for part in parts.values())
    for (label, part), colour in zip(parts.items(), colours, strict=True):
        text = f"{label} ({100 * part.sum() / total:.1f} %)"
        axes.bar(stats.epoch, part, width, bottom=bottom, color=colour, label=text, linewidth=0)
        bottom += part.to_numpy()
    axes.set_ylim(0, 1.02 * bottom.max())
    axes.grid(visible=False, axis="x")


def _line(axes: Axes, stats: pd.DataFrame, column: str, label: str, colour: str) -> None:
    marker = "o" if len(stats) <= _MARKED else None
    axes.plot(stats.epoch, stats[column], color=colour, label=label, marker=marker)


def _finish(axes: Axes, stats: pd.DataFrame, result: Result, outcome: str | None = None) -> None:
    """Mark where attempts resumed, and set what all three figures share."""
    for i, epoch in enumerate(result.resumed_at):
        axes.axvline(
            epoch - 0.5, color=style.MUTED, linewidth=1, linestyle=":", label="resumed" if i == 0 else None, zorder=1.5
        )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, len(stats) + 0.5)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.4,
        title=outcome, title_fontproperties={"weight": "bold", "size": 9}, alignment="left",
    )  # fmt: skip


def _decades(stats: pd.DataFrame) -> float:
    values = stats[["overall_loss", "val_loss_avg"]].to_numpy()
    return float(np.log10(values.max() / values.min()))
