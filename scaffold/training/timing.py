"""How long training steps take, without waiting for the device inside an epoch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scaffold.parallel.team import Team


class StepTimer:
    """Times the full batches of one epoch: CUDA events on a GPU, the clock on a CPU.

    A last, smaller batch would distort the median, and is not timed.

    Args:
        device: what the steps run on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[Any, Any]] = []

    @contextmanager
    def step(self, is_full: bool) -> Iterator[None]:
        """Time the block if ``is_full``."""
        if not is_full:
            yield
            return
        start = self._mark()
        yield
        self._marks.append((start, self._mark()))

    def seconds(self) -> list[float]:
        """Return the time of each full batch; waits for the device."""
        if self._device.type != "cuda":
            return [end - start for start, end in self._marks]
        if self._marks:
            self._marks[-1][1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in self._marks]

    def median(self, team: Team) -> float | None:
        """Return the median over batches of the slowest rank's time; None without a full batch. Collective."""
        return median_of_slowest(team.exchange(self.seconds()))

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def median_of_slowest(seconds: list[list[float]]) -> float | None:
    """Return the median over batches of the greatest time of any rank.

    Args:
        seconds: for each rank the time of each of its full batches; all ranks have equally many.
    """
    slowest = [max(batch) for batch in zip(*seconds, strict=True)]
    return statistics.median(slowest) if slowest else None
