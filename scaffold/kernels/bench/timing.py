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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _start(function: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Run ``function``; return how to learn its seconds once the device has finished."""
    if device.type != "cuda":
        begin = time.perf_counter()
        function()
        seconds = time.perf_counter() - begin
        return lambda: seconds
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    function()
    stop.record()

    def elapsed() -> float:
        stop.synchronize()
        return cast(float, start.elapsed_time(stop)) / 1e3

    return elapsed


def interleave(
    functions: Sequence[Callable[[], object]], device: torch.device, repetitions: int, span_s: float = math.inf
) -> list[list[float]]:
    """Time functions in rounds, A B C, C B A, A B C ...; return the seconds of each.

    Args:
        functions: enqueue work on the device, or do it on the CPU.
        device: which.
        repetitions: rounds.
        span_s: all rounds together should take no longer; ``LEAST_ROUNDS`` of them, or ``repetitions`` if
            that is less, are made anyway.
    """
    for function in functions:
        for _ in range(2):
            function()
    _wait(device)
    begin = time.perf_counter()
    for function in functions:
        function()
    _wait(device)
    rounds = min(repetitions, max(LEAST_ROUNDS, int(min(span_s / (time.perf_counter() - begin), repetitions))))
    pending = []
    for turn in range(rounds):
        order = range(len(functions)) if turn % 2 == 0 else reversed(range(len(functions)))
        pending += [(index, _start(functions[index], device)) for index in order]
    times: list[list[float]] = [[] for _ in functions]
    for index, seconds in pending:
        times[index].append(seconds())
    return times


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median between the limits of its 95 % confidence interval (order statistics)."""
    ordered = sorted(values)
    n = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(n))
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return ordered[low], median(ordered), ordered[high]
