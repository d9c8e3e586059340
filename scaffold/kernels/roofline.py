"""The roofline figure of the kernel benchmark."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

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
    if not rows or not {"workload", "case", "arm", "tflop_per_s", "min_gflop"} <= rows[0].keys():
        raise DamagedFileError(path, "is not a kernel benchmark", remedy)
    return rows


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Draw each arm's rate over the case's arithmetic intensity, below the measured ceilings.

    Intensity and rate both count the common minimum of the case, so that all arms of a case stand above
    one another.

    Args:
        rows: of one device.
        path: PNG or SVG to write.
    """
    from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure = Figure(figsize=(8 * len(workloads), 4.8), layout="constrained")
    for axes, workload in zip(np.atleast_1d(figure.subplots(1, len(workloads))), workloads, strict=True):
        _plot_workload(axes, workload, [row for row in rows if row["workload"] == workload])
    with atomic.write(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _plot_workload(axes: Any, workload: str, rows: list[dict[str, str]]) -> None:
    bandwidth, peak = float(rows[0]["copy_gbyte_per_s"]) / 1e3, float(rows[0]["float32_tflop_per_s"])
    tensor = float(rows[0]["tf32_tflop_per_s"]) / 3
    intensities = [_intensity(row) for row in rows]
    x = np.geomspace(min(intensities) / 1.5, max(intensities) * 1.5, 100)
    label = f"copy {bandwidth:.2f} TB/s, float32 {peak:.0f} TFLOP/s"
    axes.plot(x, np.minimum(bandwidth * x, peak), color="black", label=label)
    if tensor > peak:
        label = f"a third of tf32, {tensor:.0f} TFLOP/s"
        axes.plot(x, np.minimum(bandwidth * x, tensor), color="black", ls=":", label=label)
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
        if arm.endswith("(again)"):
            continue
        chosen = [row for row in rows if row["arm"] == arm]
        axes.scatter(
            [_intensity(row) for row in chosen], [float(row["tflop_per_s"]) for row in chosen],
            marker="osDv^<>Pp*X"[number % 11], label=arm, s=36,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity of the minimum, FLOP/byte")
    axes.set_ylabel("rate of the minimum, TFLOP/s")
    axes.set_title(f"{workload}, {rows[0]['device']}")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(visible=True, which="both", alpha=0.3)


def _intensity(row: dict[str, str]) -> float:
    return float(row["min_gflop"]) / float(row["min_gbytes"])
