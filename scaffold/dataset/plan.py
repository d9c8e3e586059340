"""Which fractals go into which volume, which volumes validate, and in which colours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaffold import rng
from scaffold.config import INSTANCES_PER_CATEGORY, RunConfig

CHANNELS = 3
_COLOUR_DISTANCE = 1 / 64
_COLOUR_LEVELS = 2.0**24


@dataclass(frozen=True)
class Plan:
    """The composition of a data set; a pure function of its settings.

    Attributes:
        pairs: (category, instance) of each fractal of each volume, in the order of painting,
            (n_volumes, n_fracts_per_vol, 2) int32.
        validation: whether a volume validates, (n_volumes,) bool.
        palette: colour of each label, label 0 being the background, (n_categories + 1, 3) float32.
    """

    pairs: NDArray[np.int32]
    validation: NDArray[np.bool_]
    palette: NDArray[np.float32]


def make_plan(config: RunConfig) -> Plan:
    """Return the plan of the data set that ``config`` defines."""
    order = rng.permutation(rng.key(config.seed, "composition"), config.n_categories * config.instances_used)
    categories, turns = np.divmod(order, config.instances_used)
    pairs = np.stack([categories, turns % INSTANCES_PER_CATEGORY], axis=1).astype(np.int32)
    validation = np.zeros(config.n_volumes, dtype=np.bool_)
    validation[rng.permutation(rng.key(config.seed, "split"), config.n_volumes)[: config.n_validation]] = True
    return Plan(pairs.reshape(config.n_volumes, config.n_fracts_per_vol, 2), validation, _palette(config))


def adjustments(config: RunConfig) -> list[str]:
    """Return what of the settings is not taken literally, as sentences for the user's log."""
    asked, used, fractals = config.n_instances_used_per_fractal, config.instances_used, config.n_fracts_per_vol
    notes = []
    if used < asked:
        notes.append(
            f"n_instances_used_per_fractal = {asked} is rounded down to {used},"
            f" a multiple of n_fracts_per_vol = {fractals}, so that all volumes are full"
        )
    if used > INSTANCES_PER_CATEGORY:
        notes.append(
            f"n_instances_used_per_fractal = {asked} exceeds the {INSTANCES_PER_CATEGORY} instances of a category:"
            " instances appear more than once"
        )
    return notes


def _palette(config: RunConfig) -> NDArray[np.float32]:
    """Draw the colours: LLNL's uniform ones, except that a colour must be told apart from the others.

    A colour within 1/64 of the background or of an earlier one in every channel is drawn again:
    its class could not be seen, least of all in bfloat16, whose numbers near 1 lie 1/256 apart. With
    five categories this touches one palette in 3000; the 32767 categories of the greatest
    data set fill an eighth of the colour cube and still find room.
    """
    colours = np.zeros((config.n_categories + 1, CHANNELS), dtype=np.float32)
    drawn = config.n_categories if config.coloring == "category" else 1
    for label in range(1, drawn + 1):
        draw = 0
        while _nearest(colour := _colour(config.seed, label, draw), colours[:label]) < _COLOUR_DISTANCE:
            draw += 1
        colours[label] = colour
    if config.coloring == "uniform":
        colours[1:] = colours[1]
    return colours


def _colour(seed: int, label: int, draw: int) -> NDArray[np.float32]:
    uniform = rng.uniform(rng.key(seed, "colour", label, draw), CHANNELS)
    # float32 has 24 bits: rounding a draw just below 1 to nearest would give 1, outside [0, 1).
    return (np.floor(uniform * _COLOUR_LEVELS) / _COLOUR_LEVELS).astype(np.float32)


def _nearest(colour: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    return float(np.abs(others - colour).max(axis=1).min())
