"""Timing several ways of doing one thing so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Task = Callable[[], object]
Stopwatch = Callable[[Task], Callable[[], float]]
"""Runs or enqueues a task; what it returns waits for the end of that, and gives the seconds that it took."""


def on_host(task: Task) -> Callable[[], float]:
    """Run ``task`` to its end; return how to learn its seconds."""
    begin = time.perf_counter()
    task()
    seconds = time.perf_counter() - begin
    return lambda: seconds


def interleave(tasks: Sequence[Task], rounds: int, stopwatch: Stopwatch = on_host) -> list[list[float]]:
    """Time tasks in rounds, A B C, C B A, A B C ...; return the seconds of each, one value a round.

    No time is asked for before all has been started, so that a host may run ahead of its device.
    """
    running = []
    for turn in range(rounds):
        order = range(len(tasks)) if turn % 2 == 0 else reversed(range(len(tasks)))
        running += [(index, stopwatch(tasks[index])) for index in order]
    times: list[list[float]] = [[] for _ in tasks]
    for index, seconds in running:
        times[index].append(seconds())
    return times
