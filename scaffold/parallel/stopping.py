"""Stop requests: one rank is asked to stop, all ranks stop at the same step.

A signal or the time limit sets a flag on one rank. The flags are combined by an asynchronous
reduction over the control group that is posted at step k and read at step k + 2, when it has long
arrived: no rank waits, and no device is synchronised.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from scaffold.errors import Ending
from scaffold.parallel import environment
from scaffold.parallel.launch import Context, lost_rank

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What asks a job to stop: schedulers send SIGTERM or SIGUSR1 before their limit, a person Ctrl-C."""

_LAG = 2
_NO_REQUEST, _TIME_LIMIT, _JOB_LIMIT = 0, 1000, 1001

_LIMIT_WITHIN_S: dict[int, float] = {signal.SIGTERM: 15.0, signal.SIGUSR1: 600.0}
"""A signal that comes so short before the announced end of the job, in seconds, is that end, or warns of it."""


@dataclass(frozen=True)
class Request:
    """What asks all ranks to stop.

    Attributes:
        ending: ``SIGNAL`` or ``TIME_LIMIT``.
        name: for the user ("SIGTERM", "time limit"), with what a scheduler means by it as far as that is known.
    """

    ending: Ending
    name: str


class StopRequests:
    """Collects requests to stop and makes all ranks see them together.

    Every rank calls :meth:`poll` and :meth:`settle` equally often.

    Args:
        context: this rank.
        deadline: value of ``time.monotonic()`` at which to stop, or None. Rank 0's counts.
    """

    def __init__(self, context: Context, deadline: float | None = None) -> None:
        self._context = context
        self._deadline = deadline
        self._asked = _NO_REQUEST
        self._pending: deque[tuple[torch.Tensor, Any]] = deque()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn signals into requests inside the block; a second Ctrl-C interrupts at once."""
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def poll(self) -> Request | None:
        """Post this rank's flag; return the request of any rank two calls ago. Collective, does not wait."""
        self._post()
        return self._read() if len(self._pending) > _LAG else None

    def settle(self, needed_s: float = 0.0) -> Request | None:
        """Return the request of any rank by now. Collective, waits for all ranks.

        Args:
            needed_s: what the next piece of work will take, seconds; stop if the time left is less.
        """
        if self._remaining() < needed_s:
            self._asked = self._asked or _TIME_LIMIT
        self._post()
        requests = [self._read() for _ in range(len(self._pending))]
        return next((request for request in requests if request is not None), None)

    def _post(self) -> None:
        if self._remaining() <= 0:
            self._asked = self._asked or _TIME_LIMIT
        flag = torch.tensor([self._asked], dtype=torch.int32)
        work = None
        if self._context.control_group is not None:
            try:
                work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._context.control_group, async_op=True)
            except RuntimeError as error:
                raise lost_rank(error) from error
        self._pending.append((flag, work))

    def _read(self) -> Request | None:
        flag, work = self._pending.popleft()
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost_rank(error) from error
        return _request(int(flag))

    def _remaining(self) -> float:
        if self._deadline is None or self._context.rank != 0:
            return float("inf")
        return self._deadline - time.monotonic()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = _JOB_LIMIT if _is_end_of_job(number) else number
        logging.getLogger("scaffold").warning(
            "%s received on rank %d: stopping", signal.Signals(number).name, self._context.rank
        )


def _is_end_of_job(number: int) -> bool:
    """Return whether the signal ``number`` comes now because the job's time is up, or nearly so."""
    job_end, within_s = environment.job_end(), _LIMIT_WITHIN_S.get(number)
    return job_end is not None and within_s is not None and job_end - time.time() < within_s


def _request(asked: int) -> Request | None:
    if asked == _NO_REQUEST:
        return None
    if asked == _TIME_LIMIT:
        return Request(Ending.TIME_LIMIT, "time limit")
    if asked == _JOB_LIMIT:
        return Request(Ending.TIME_LIMIT, "time limit of the job")
    name = signal.Signals(asked).name
    if asked == signal.SIGTERM and environment.job_id() is not None:
        limit = " or preempted" if environment.job_end() is not None else ", preempted, or at its time limit"
        name += f" (the job was cancelled{limit})"
    return Request(Ending.SIGNAL, name)
