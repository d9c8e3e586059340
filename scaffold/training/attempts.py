"""The record of a training's attempts: when each started, how far it came, and why it ended."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scaffold import atomic, provenance
from scaffold.errors import DamagedFileError, Ending, ExitCode
from scaffold.parallel import environment

ATTEMPTS = "attempts.json"

AT_LIMIT_S = 20.0
"""A job last heard of so close to the end that its scheduler had set was ended by it; a heart beats every 15 s."""


@dataclass
class Attempt:
    """One start of a training.

    Attributes:
        start: UTC, ISO 8601.
        host: of rank 0.
        job: the scheduler's job, or None.
        first_epoch: the first epoch it was to train; None until that is known.
        last_epoch: the last epoch whose checkpoint is on disk; None if it added none.
        end: UTC, ISO 8601; for a killed attempt the last sign of life; None while it runs.
        wall_s: from start to end, seconds.
        ending: why it ended; None while it runs.
        reason: the same in words, for people: what the user was told.
        exit_code: of its process; None if it was killed.
        forgiven: no longer counts as an attempt without progress.
        setup: seconds of its parts before the first epoch.
        world: what it ran on (:meth:`scaffold.parallel.launch.Context.describe`).
        cuda_graph: what became of its CUDA graphs (:meth:`scaffold.training.graph.StepGraphs.status`).
        kernels: which implementations served it (:func:`scaffold.training.served.gather`); None until it has trained.
        restarts: how often the scheduler had requeued its job before.
        job_end: when the scheduler was to end its job, POSIX time; None if it does not say.
    """

    start: str
    host: str
    job: str | None
    first_epoch: int | None = None
    last_epoch: int | None = None
    end: str | None = None
    wall_s: float | None = None
    ending: Ending | None = None
    reason: str | None = None
    exit_code: int | None = None
    forgiven: bool = False
    setup: dict[str, float] | None = None
    world: dict[str, Any] | None = None
    cuda_graph: dict[str, str] | None = None
    kernels: dict[str, Any] | None = None
    restarts: int = 0
    job_end: int | None = None

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Attempt:
        """Return what :meth:`Attempts.to_json` wrote.

        Raises:
            TypeError, ValueError: it is none.
        """
        attempt = cls(**entry)
        attempt.ending = None if attempt.ending is None else Ending(attempt.ending)
        return attempt

    @property
    def ended_itself(self) -> bool:
        """Whether it ended by its own doing, so that the next one may well end in the same way.

        That is a crash, or a time limit too short for one epoch. What came from outside says nothing
        of the next attempt: kills, lost ranks, signals, and what the user was told to mend (wrong
        settings, damaged files, a full disk).
        """
        return self.ending is Ending.TIME_LIMIT or self.exit_code in (ExitCode.INTERNAL, ExitCode.INCURABLE)


class Attempts:
    """The record of all attempts of a training; the last is the present one after :meth:`begin`.

    Args:
        folder: the work folder.

    Raises:
        DamagedFileError: the record is unreadable.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ATTEMPTS
        self.all: list[Attempt] = []
        self._started = time.monotonic()
        if self._path.exists():
            try:
                self.all = [Attempt.from_json(entry) for entry in json.loads(self._path.read_text())]
            except (ValueError, TypeError) as error:
                # A record only: without it the training still continues from its checkpoint.
                raise DamagedFileError(self._path, f"is unreadable ({error})", f"rm {self._path}") from error

    @property
    def current(self) -> Attempt:
        """The attempt that is going on."""
        return self.all[-1]

    def begin(self, last_sign_of_life: float) -> None:
        """Add a new attempt, and close the one before if it was killed.

        Args:
            last_sign_of_life: of a killed attempt, POSIX time.
        """
        present = Attempt(
            provenance.now(),
            socket.gethostname(),
            environment.job_id(),
            restarts=environment.restarts(),
            job_end=environment.job_end(),
        )
        if self.all:
            if self.current.end is None:
                self._close_killed(self.current, last_sign_of_life)
            if self.current.job is not None and self.current.job == present.job:
                self._note_requeue(self.current, present)
        self.all.append(present)
        self.write()

    def resume_from(self, epoch: int) -> None:
        """Note that this attempt continues after ``epoch``, which also says what earlier ones achieved.

        A killed one said nothing, and one that ended in a hurry may not have known that its last
        checkpoint would still come to disk.
        """
        self.current.first_epoch = epoch + 1
        reached = epoch
        for attempt in reversed(self.all[:-1]):
            if attempt.first_epoch is None:
                continue
            if attempt.first_epoch <= reached:
                attempt.last_epoch = max(attempt.last_epoch or 0, reached)
            reached = min(reached, attempt.first_epoch - 1)
        self.write()

    def reached(self, epoch: int) -> None:
        """Note the last epoch that the present attempt brought to disk; it may be an earlier attempt's."""
        first = self.current.first_epoch
        if first is not None and epoch >= first:
            self.current.last_epoch = epoch

    def end(self, ending: Ending, reason: str, exit_code: int) -> None:
        """Close the present attempt."""
        self.current.end = provenance.now()
        self.current.wall_s = round(time.monotonic() - self._started, 3)
        self.current.ending, self.current.reason, self.current.exit_code = ending, reason, int(exit_code)
        self.write()

    def forgive(self) -> None:
        """Let earlier attempts without progress no longer count."""
        for attempt in self.all:
            attempt.forgiven = True
        self.write()

    def forget_earlier(self) -> None:
        """Keep the present attempt alone: the earlier ones belong to another training."""
        self.all = [self.current]
        self.write()

    def without_progress(self) -> list[Attempt]:
        """Return the attempts since the last progress that ended by their own doing, in order of time."""
        found: list[Attempt] = []
        for attempt in reversed(self.all):
            if attempt.forgiven or attempt.last_epoch is not None or attempt.exit_code == ExitCode.DONE:
                break
            if attempt.ended_itself:
                found.insert(0, attempt)
        return found

    def lost_s(self, epoch_seconds: dict[int, float]) -> float:
        """Return the wall time of all earlier attempts less what of it counts: redone and abandoned work.

        Args:
            epoch_seconds: the time that counts for each epoch of the result.
        """
        lost = 0.0
        first_later = float("inf")
        for attempt in reversed(self.all):
            if attempt is not self.current:
                kept = [
                    seconds
                    for epoch, seconds in epoch_seconds.items()
                    if attempt.first_epoch is not None
                    and attempt.first_epoch <= epoch <= (attempt.last_epoch or 0)
                    and epoch < first_later
                ]
                lost += max((attempt.wall_s or 0.0) - sum(kept), 0.0)
            first_later = min(first_later, attempt.first_epoch or first_later)
        return lost

    def to_json(self) -> list[dict[str, Any]]:
        """Return the record as plain JSON types."""
        return [asdict(attempt) for attempt in self.all]

    def write(self) -> None:
        """Write the record."""
        atomic.write_json(self._path, self.to_json())

    def _close_killed(self, attempt: Attempt, last_sign_of_life: float) -> None:
        at_limit = attempt.job_end is not None and attempt.job_end - last_sign_of_life < AT_LIMIT_S
        attempt.ending, attempt.reason = Ending.KILLED, "killed at its job's time limit" if at_limit else "killed"
        started = datetime.fromisoformat(attempt.start)
        ended = max(last_sign_of_life, started.timestamp())
        attempt.end = datetime.fromtimestamp(ended, started.tzinfo).isoformat(timespec="seconds")
        attempt.wall_s = round(ended - started.timestamp(), 3)

    def _note_requeue(self, attempt: Attempt, present: Attempt) -> None:
        """Say of ``attempt``, which a signal or a kill ended, that the scheduler put its job back into the queue."""
        if attempt.restarts < present.restarts and attempt.ending in (Ending.KILLED, Ending.SIGNAL, Ending.LOST_RANK):
            attempt.reason = f"{attempt.reason}; its job was requeued"
