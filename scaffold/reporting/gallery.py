"""What a trained network sees: slices of validation volumes beside the truth, its answer and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from numpy.typing import NDArray

from scaffold.records import Result
from scaffold.reporting import style
from scaffold.reporting.results import Predictions

_PIXELS = 512
"""Edge that a slice is reduced to: more pixels than a panel shows would be dropped at random."""

_BACKGROUND = "#000000"
_FOOTER = 0.6
"""Inches for the legends, two lines."""

_LISTED = 6
"""Categories that the legend names; more would not fit."""

CORRECT, MISSED, FALSE, CONFUSED = 1, 2, 3, 4
_ERRORS = {
    CORRECT: ("correct", "#6f7784"),
    MISSED: ("missed", style.ORANGE),
    FALSE: ("not there", style.SKY),
    CONFUSED: ("wrong category", style.PURPLE),
}


def draw_gallery(predictions: Predictions, result: Result, path: Path) -> None:
    """Draw one row per slice: image, truth, prediction, errors.

    Args:
        predictions: as :func:`scaffold.reporting.results.read_predictions` returns it.
        result: the same training's.
        path: figure to write.
    """
    rows = len(predictions.truth)
    colours = label_colours(len(predictions.palette))
    title = f"Validation slices · {style.name(result)}"
    size = (8.6, 0.75 + _FOOTER + 1.9 * rows)
    with style.figure(path, title, style.conditions(result), size, _FOOTER) as drawing:
        panels = drawing.subplots(rows, 4, squeeze=False)
        for i, row in enumerate(panels):
            truth, prediction = reduce(predictions.truth[i]), reduce(predictions.prediction[i])
            image = np.stack([reduce(channel) for channel in predictions.image[i]], axis=-1)
            wrong = error_map(predictions.truth[i], predictions.prediction[i])
            _panel(row[0], np.clip(image, 0, 1))
            _panel(row[1], colours[truth])
            _panel(row[2], colours[prediction])
            _panel(row[3], _error_colours()[reduce(wrong)])
            row[0].set_ylabel(
                f"sample {predictions.sample_id[i]}\nplane {predictions.depth[i]}\n"
                f"volume's Dice\n{predictions.dice[i]:.3f}",
                rotation=0, ha="right", va="center", fontsize=8.5, labelpad=6,
            )  # fmt: skip
        for axes, heading in zip(panels[0], ("image", "truth", "prediction", "errors"), strict=True):
            axes.set_title(heading, loc="center", fontsize=9.5)
        # Label k + 1 is category k.
        _legend(
            panels[-1][1], [(f"category {k - 1}", colours[k]) for k in _listed(predictions)], centre=1.03, columns=3
        )
        _legend(panels[-1][3], list(_ERRORS.values()), centre=0.5, columns=2)


def label_colours(labels: int) -> NDArray[np.float64]:
    """Return a colour for each of ``labels`` labels, (labels, 3); label 0, the background, is dark.

    They are not the data's palette, whose colours are random and may be alike.
    """
    cycle = [to_rgb(colour) for colour in (*style.CYCLE, "#ffffff")]
    return np.array([to_rgb(_BACKGROUND), *(cycle[k % len(cycle)] for k in range(labels - 1))])


def error_map(truth: NDArray[np.int16], prediction: NDArray[np.int16]) -> NDArray[np.int8]:
    """Return, for each pixel, 0 where both are background, else CORRECT, MISSED, FALSE or CONFUSED."""
    errors = np.zeros(truth.shape, np.int8)
    errors[(truth > 0) & (truth == prediction)] = CORRECT
    errors[(truth > 0) & (prediction == 0)] = MISSED
    errors[(truth == 0) & (prediction > 0)] = FALSE
    errors[(truth > 0) & (prediction > 0) & (truth != prediction)] = CONFUSED
    return errors


def reduce(plane: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return ``plane`` (h, w) with no edge above 512 pixels: the greatest value of each block.

    A fractal's slice is mostly background with lone pixels, which averaging or skipping would lose.
    """
    factor = -(-max(plane.shape) // _PIXELS)
    if factor <= 1:
        return plane
    height, width = (-(-edge // factor) * factor for edge in plane.shape)
    padded = np.zeros((height, width), plane.dtype)
    padded[: plane.shape[0], : plane.shape[1]] = plane
    blocks: NDArray[np.generic] = padded.reshape(height // factor, factor, width // factor, factor).max(axis=(1, 3))
    return blocks


def _listed(predictions: Predictions) -> list[int]:
    seen = np.union1d(predictions.truth, predictions.prediction)
    return [int(label) for label in seen if label > 0][:_LISTED]


def _error_colours() -> NDArray[np.float64]:
    return np.array([to_rgb(_BACKGROUND), *(to_rgb(colour) for _, colour in _ERRORS.values())])


def _legend(axes: Axes, entries: Sequence[tuple[str, Any]], centre: float, columns: int) -> None:
    legend = axes.legend(
        handles=[Patch(color=colour, label=text) for text, colour in entries],
        loc="upper center", bbox_to_anchor=(centre, -0.02), ncols=columns,
        fontsize=8.5, handlelength=1, handleheight=1, columnspacing=1.2,
    )  # fmt: skip
    # A legend wider than its panel would push the panels apart.
    legend.set_in_layout(False)


def _panel(axes: Axes, pixels: NDArray[np.floating]) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
