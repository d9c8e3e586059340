"""The figure of the kernel benchmark: a roofline, and how near to it each arm of each case comes."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffold import atomic
from scaffold.errors import DamagedFileError, UserError


def read_rows(path: Path, remedy: str) -> list[dict[str, str]]:
    """Read the benchmark's CSV.

    Raises:
        UserError: there is no such file.
        DamagedFileError: it has no rows, or columns are missing.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; make it with: {remedy}") from None
    rows = list(csv.DictReader(text.splitlines()))
    if not rows or _READ - rows[0].keys():
        raise DamagedFileError(path, "is not a kernel benchmark", remedy)
    return rows


_READ = {
    "device", "workload", "case", "arm", "median_ms", "limit", "score", "min_gbytes", "min_gflop", "tflop_per_s",
    "copy_gbyte_per_s", "float32_tflop_per_s", "tf32_tflop_per_s", "bfloat16_tflop_per_s",
}  # fmt: skip
"""Columns that results must have. An arithmetic ceiling that was not measured is blank."""

_AGAIN = " (again)"
_COLUMNS = 3
_ROW, _HEADING, _ROOFLINE, _KEY_ROW, _WIDTH = 0.17, 0.65, 4.6, 0.3, 6.2
"""Inches: the height of a case, of what surrounds a panel, of the roofline, of a row of the key; a column's width."""
_KEY_COLUMNS = 6


class _Panel(NamedTuple):
    """The rows of a workload, by case."""

    workload: str
    cases: dict[str, list[dict[str, str]]]

    @property
    def height(self) -> float:
        return _HEADING + _ROW * len(self.cases)


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Draw the benchmark.

    Above, the rate of each case's first arm, which is what runs by default, over the case's arithmetic
    intensity, below the measured ceilings. Below, for each workload the fraction of the roof that each arm of
    each case reaches. Rates and fractions count the common minimum of the case, so that no arm looks good by
    doing more.

    Args:
        rows: of one device.
        path: PNG or SVG to write.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    panels = _panels(rows)
    columns = _columns(panels)
    arms = list(dict.fromkeys(row["arm"] for row in rows if not row["arm"].endswith(_AGAIN)))
    styles = {
        arm: {"color": colormaps["tab20"](2 * (i % 10) + (i // 10) % 2), "marker": "osDv^<>Pp*X"[i % 11]}
        for i, arm in enumerate(arms)
    }
    below = max(sum(panel.height for panel in column) for column in columns)
    key = _KEY_ROW * math.ceil(len(arms) / _KEY_COLUMNS)
    figure = Figure(figsize=(max(_WIDTH * len(columns), 9), _ROOFLINE + key + below), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[_ROOFLINE, key + below])
    above, under = halves
    _plot_roofline(above.subplots(), panels)
    for part, column in zip(under.subfigures(1, len(columns), squeeze=False)[0], columns, strict=True):
        heights = [panel.height for panel in column]
        spare = below - sum(heights)
        # Rows are as high in every column: the shorter ones are filled up.
        filling = [spare] if spare > _ROW else []
        grid = part.subplots(len(column) + len(filling), 1, height_ratios=heights + filling, squeeze=False)[:, 0]
        for axes, panel in zip(grid, column, strict=False):
            _plot_panel(axes, panel, styles)
        for axes in grid[len(column) :]:
            axes.set_axis_off()
    handles = [_handle(arm, style) for arm, style in styles.items()]
    under.legend(handles=handles, loc="outside upper center", ncols=_KEY_COLUMNS, fontsize="small", frameon=False)
    with atomic.write(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=120)


def _panels(rows: list[dict[str, str]]) -> list[_Panel]:
    panels: dict[str, _Panel] = {}
    for row in rows:
        cases = panels.setdefault(row["workload"], _Panel(row["workload"], {})).cases
        if not row["arm"].endswith(_AGAIN):
            cases.setdefault(row["case"], []).append(row)
    return list(panels.values())


def _columns(panels: list[_Panel]) -> list[list[_Panel]]:
    """Hand the panels out to columns of about the same height, in their order within each."""
    columns: list[list[_Panel]] = [[] for _ in range(min(_COLUMNS, len(panels)))]
    for panel in panels:
        min(columns, key=lambda column: sum(each.height for each in column)).append(panel)
    return columns


def _plot_roofline(axes: Any, panels: list[_Panel]) -> None:
    from matplotlib import colormaps

    any_row = next(iter(panels[0].cases.values()))[0]
    bandwidth = float(any_row["copy_gbyte_per_s"]) / 1e3
    firsts = [[arms[0] for arms in panel.cases.values()] for panel in panels]
    intensities = [_intensity(row) for rows in firsts for row in rows]
    x = np.geomspace(min(intensities) / 1.5, max(intensities) * 1.5, 200)
    for kind, style, rate in _ceilings(any_row):
        label = f"copy {bandwidth:.2f} TB/s, {kind} {rate:.3g} TFLOP/s"
        axes.plot(x, np.minimum(bandwidth * x, rate), color="black", ls=style, lw=1, label=label)
    for number, (panel, rows) in enumerate(zip(panels, firsts, strict=True)):
        axes.scatter(
            [_intensity(row) for row in rows], [float(row["tflop_per_s"]) for row in rows],
            color=colormaps["tab20"](number % 20), marker="osDv^<>Pp*X"[number % 11], s=26, label=panel.workload,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity of the minimum, FLOP/byte")
    axes.set_ylabel("rate of the minimum, TFLOP/s")
    axes.set_title(f"What runs by default, on {any_row['device']}", fontsize="medium")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(visible=True, which="major", alpha=0.3)


def _ceilings(row: dict[str, str]) -> list[tuple[str, str, float]]:
    """Return the arithmetic ceilings that were measured: name, style of line, TFLOP/s."""
    ceilings = [
        ("bfloat16", "-", row["bfloat16_tflop_per_s"], 1),
        ("a third of tf32", ":", row["tf32_tflop_per_s"], 3),
        ("float32", "--", row["float32_tflop_per_s"], 1),
    ]
    return [(kind, style, float(rate) / share) for kind, style, rate, share in ceilings if rate]


def _plot_panel(axes: Any, panel: _Panel, styles: dict[str, dict[str, Any]]) -> None:
    scores = [float(row["score"]) for arms in panel.cases.values() for row in arms]
    right = max(1.0, *scores)
    for y, arms in enumerate(panel.cases.values()):
        first, *others = arms
        reached = [float(row["score"]) for row in arms]
        axes.plot([min(reached), max(reached)], [y, y], color="0.8", lw=1.5, zorder=1)
        # The first lies over the others.
        for row in reversed(arms):
            axes.scatter(float(row["score"]), y, s=22, zorder=2, **styles[row["arm"]])
        text = f"{float(first['median_ms']):.3g} ms" + _gain(first, others)
        axes.annotate(text, (1.01, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=7)
    axes.axvline(1, color="black", lw=1)
    axes.set_xlim(0, right * 1.03)
    axes.set_ylim(len(panel.cases) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.cases)), list(panel.cases), fontsize=7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(f"{panel.workload}: fraction of the roof", fontsize=9)
    axes.grid(visible=True, axis="x", alpha=0.3)


def _gain(first: dict[str, str], others: list[dict[str, str]]) -> str:
    """Say how many times as long as the first arm the fastest other one takes."""
    if not others:
        return ""
    best = min(float(row["median_ms"]) for row in others)
    return f", other {best / float(first['median_ms']):.3g}x"


def _handle(arm: str, style: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", label=arm, **style)


def _intensity(row: dict[str, str]) -> float:
    return float(row["min_gflop"]) / float(row["min_gbytes"])
