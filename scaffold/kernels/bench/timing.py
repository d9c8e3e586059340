"""Timing what is enqueued on a device."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import NamedTuple, cast

import torch

from scaffold.interleave import Stopwatch, Task, interleave, on_host
from scaffold.kernels.bench.case import Arm

LEAST_ROUNDS = 5
"""No limit of time makes them fewer, or the median would have no interval."""

_log = logging.getLogger(__name__)


class Timed(NamedTuple):
    """What is timed of an arm."""

    run: Callable[[], object]
    calls: int
    """Calls that one run replays; 0 if it is the call itself."""


def in_graph(arm: Arm, calls: int) -> Timed:
    """Capture ``calls`` of ``arm`` in a CUDA graph; where none takes it, the arm itself is timed, with a warning."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(calls):
                arm.run()
    except RuntimeError as error:
        _log.warning("%s is timed with what its launches cost the host: no CUDA graph took it: %s", arm.name, error)
        return Timed(arm.run, 0)
    return Timed(graph.replay, calls)


def side_stream(device: torch.device) -> AbstractContextManager[object]:
    """Return a stream to work on: the default stream cannot be captured, nor a backward pass of a forward on it."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def wait(device: torch.device) -> None:
    """Wait until ``device`` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stopwatch(device: torch.device) -> Stopwatch:
    """Return the stopwatch of a device: on a GPU it runs from event to event of the current stream."""
    return _between_events if device.type == "cuda" else on_host


def time_in_rounds(
    tasks: Sequence[Task], device: torch.device, repetitions: int, span_s: float = math.inf
) -> list[list[float]]:
    """Warm tasks up and time them, interleaved; return the seconds of each.

    Args:
        tasks: enqueue work on the device, or do it on the CPU.
        device: which.
        repetitions: rounds.
        span_s: all rounds together should take no longer; ``LEAST_ROUNDS`` of them, or ``repetitions`` if
            that is less, are made anyway.
    """
    for task in tasks:
        for _ in range(2):
            task()
    wait(device)
    begin = time.perf_counter()
    for task in tasks:
        task()
    wait(device)
    rounds = min(repetitions, max(LEAST_ROUNDS, int(min(span_s / (time.perf_counter() - begin), repetitions))))
    return interleave(tasks, rounds, stopwatch(device))


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median between the limits of its 95 % confidence interval (order statistics)."""
    ordered = sorted(values)
    n = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(n))
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return ordered[low], median(ordered), ordered[high]


def _between_events(task: Task) -> Callable[[], float]:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    task()
    stop.record()

    def elapsed() -> float:
        stop.synchronize()
        return cast(float, start.elapsed_time(stop)) / 1e3

    return elapsed
