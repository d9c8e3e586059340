"""The one look of all figures, and the one way in which they are saved.

Figures are made without pyplot: it would keep each of them in a global list until someone closes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

from scaffold import atomic
from scaffold.records import Result
from scaffold.wording import count

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
CYCLE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
"""Okabe and Ito's colours, which remain distinct to the colour-blind (Color Universal Design, 2008)."""

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
DPI = 160
_HEADING, _MARGIN = 0.56, 0.12
"""Inches that the two lines of the heading take, and from the edge to what is drawn."""

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.dpi": DPI,
    # Equal data give equal bytes, so that a figure under version control changes only when it does.
    "svg.hashsalt": "scaffold",
    "svg.fonttype": "path",
}


@contextmanager
def figure(path: Path, title: str, subtitle: str, size: tuple[float, float], footer: float = 0.0) -> Iterator[Figure]:
    """Give a figure to draw on and save it to ``path`` when the block ends well.

    Args:
        path: the file, ``.svg`` or ``.png``; it appears whole or not at all.
        title: what is shown.
        subtitle: the conditions that it was measured under.
        size: width and height in inches.
        footer: inches to keep free at the bottom, for a legend that hangs below its panel.
    """
    with mpl.rc_context(_STYLE):
        drawing = Figure(figsize=size, layout="constrained")
        lines: list[tuple[str, float, dict[str, Any]]] = [
            (title, 0.1, {"fontsize": 12.5, "fontweight": "bold"}),
            (subtitle, 0.36, {"fontsize": 8.5, "color": MUTED}),
        ]
        for text, drop, font in lines:
            drawing.text(_MARGIN / size[0], 1 - drop / size[1], text, va="top", in_layout=False, **font)
        layout: Any = drawing.get_layout_engine()
        layout.set(
            rect=(0.0, footer / size[1], 1.0, 1 - (_HEADING + footer) / size[1]), w_pad=_MARGIN, h_pad=_MARGIN / 2
        )
        yield drawing
        save(drawing, path)


def save(drawing: Figure, path: Path) -> None:
    """Write ``drawing`` to ``path`` atomically; equal drawings give equal bytes."""
    kind = path.suffix.removeprefix(".")
    stamp = {"Date": None} if kind == "svg" else {"Software": None}
    with atomic.write(path) as file:
        drawing.savefig(file, format=kind, metadata=stamp)
    logging.getLogger("scaffold").info("wrote %s", path)


def conditions(result: Result) -> str:
    """Return what a figure of one training must say of it: problem, model, ranks, device."""
    settings = result.settings
    return (
        f"{settings.vol_size}³ voxels · {count(settings.n_categories, 'category', 'categories')}"
        f" · U-Net of {count(settings.unet_layers, 'level')}, {result.parameters:,} parameters"
        f" · {count(result.ranks, 'rank')} · {result.world.device}"
    )


def name(result: Result) -> str:
    """Return how figures call one training."""
    return f"{result.run}, {count(result.ranks, 'rank')}, seed {result.seed}"
