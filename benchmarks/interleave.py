"""Timing several ways of doing one thing so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one arm: median and the quartiles around it."""

    median: float
    low: float
    high: float


def interleave(arms: Mapping[str, Callable[[], object]], repeats: int) -> tuple[dict[str, Timing], dict[str, float]]:
    """Time each arm ``repeats`` times, in rounds, in an order that is reversed from round to round.

    Returns:
        The timings, and for each arm the median over the rounds of (first arm's time / its time).
    """
    for run in arms.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(repeats):
        for name in order:
            start = time.perf_counter()
            arms[name]()
            seconds[name].append(time.perf_counter() - start)
        order.reverse()
    timings = {name: _summarise(values) for name, values in seconds.items()}
    first = next(iter(arms))
    ratios = {
        name: statistics.median(base / own for base, own in zip(seconds[first], values, strict=True))
        for name, values in seconds.items()
    }
    return timings, ratios


def _summarise(values: list[float]) -> Timing:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return Timing(median, low, high)
