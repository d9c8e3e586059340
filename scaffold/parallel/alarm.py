"""Telling the other ranks of a failure that they cannot be asked about.

Most failures are agreed upon (:meth:`Team.together`). One in the middle of a training step cannot be:
the other ranks already wait in a collective for a rank that will not come. So the failing rank leaves
a note in the torch store; on every rank a watcher thread looks for one, and ends its process with the
same message and exit code, wherever its main thread is stuck. For a rank that was killed, which can leave
none, the first to notice does (:mod:`scaffold.parallel.lifelines`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from scaffold.errors import Ending, ExitCode, ScaffoldError, StoppedError
from scaffold.parallel.lifelines import Lifelines
from scaffold.parallel.team import RankError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from scaffold.parallel.launch import Context

_KEY = "failure"
_HEARD = "failure/heard"
_LOOK_EVERY_S = 0.5
_WAIT_FOR_OTHERS_S = 10.0


@dataclass(frozen=True)
class Failure:
    """What befell which rank.

    Attributes:
        rank: the rank that failed.
        exit_code: what all ranks end with.
        message: for the user.
        ending: what kind of end it is for the training.
    """

    rank: int
    exit_code: int
    message: str
    ending: Ending

    @classmethod
    def of(cls, context: Context, error: BaseException) -> Failure:
        """Return the failure that ``error`` is; an unexpected one is named with its type and rank."""
        if isinstance(error, ScaffoldError):
            return cls(context.rank, int(error.exit_code), str(error), _ending(error))
        place = f"rank {context.rank} of {context.size}: " if context.size > 1 else ""
        return cls(context.rank, int(ExitCode.INTERNAL), f"{place}{type(error).__name__}: {error}", Ending.FAILED)

    @classmethod
    def from_note(cls, note: str | bytes) -> Failure:
        """Return the failure that :meth:`note` wrote down."""
        content = json.loads(note)
        return cls(**{**content, "ending": Ending(content["ending"])})

    @classmethod
    def death(cls, rank: int) -> Failure:
        """Return the failure that the end of ``rank``'s process is, which says nothing itself."""
        told = f"lost contact with rank {rank}; the last checkpoint is safe: run the same command again"
        return cls(rank, ExitCode.RUN_AGAIN, told, Ending.LOST_RANK)

    def note(self) -> str:
        """Return it as text, for the store."""
        return json.dumps(asdict(self))


class Alarm:
    """Watches for a failure of another rank, and raises the alarm for one of this rank.

    Args:
        context: this rank; with a single process there is nobody to watch.
        last_act: called with the failure just before the process ends on another rank's alarm, from
            the watcher thread; it must not use collectives.
    """

    def __init__(self, context: Context, last_act: Callable[[Failure], None] = lambda failure: None) -> None:
        self._context = context
        self.last_act = last_act
        self._off = threading.Event()
        self._ending = threading.Lock()
        self._store: TCPStore | None = None
        if context.store is not None:
            # Its own connection: a blocking call of the main thread holds the lock of the shared one.
            self._store = _connect(context.store)
            threading.Thread(target=self._watch, args=(self._store,), name="alarm", daemon=True).start()

    def off(self) -> None:
        """Stop watching: from now on ranks may end at different times.

        Does not return where the watcher is about to end the process already: one of the two tells why.
        """
        self._off.set()
        with self._ending:
            pass

    def raise_alarm(self, failure: Failure) -> Failure:
        """Tell all ranks and the user that this one failed, act for the last time, wait until the others heard.

        The user first: a launcher may kill this rank as soon as another has ended.

        Returns:
            The first failure of any rank, which all of them end with.
        """
        self.off()
        if self._store is None:
            self.last_act(failure)
            _tell(failure)
            return failure
        try:
            first = Failure.from_note(self._store.compare_set(_KEY, "", failure.note()))
        except RuntimeError:
            first = failure
        self.last_act(first)
        _tell(first)
        self._wait_for_others(self._store, first)
        return first

    def _wait_for_others(self, store: TCPStore, failure: Failure) -> None:
        """Wait until every rank has read the note, which is gone when rank 0, who serves the store, is."""
        able = self._context.size - (failure.ending is Ending.LOST_RANK)
        try:
            store.add(_HEARD, 1)
            until = time.monotonic() + _WAIT_FOR_OTHERS_S
            while store.add(_HEARD, 0) < able and time.monotonic() < until:
                time.sleep(0.05)
        except RuntimeError:
            pass

    def _watch(self, store: TCPStore) -> None:
        lifelines: Lifelines | None = None
        hosts = self._context.hosts
        # The store is gone: the loop tells of rank 0's end.
        with contextlib.suppress(RuntimeError):
            host = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
            lifelines = Lifelines(self._context.rank, store, host)
        while not self._off.wait(_LOOK_EVERY_S):
            try:
                # In this order: a rank that ends by itself leaves its note before.
                lost = lifelines.lost() if lifelines is not None else None
                if store.check([_KEY]):
                    failure = Failure.from_note(store.get(_KEY))
                elif lost is not None:
                    failure = Failure.from_note(store.compare_set(_KEY, "", Failure.death(lost).note()))
                else:
                    continue
            except RuntimeError:
                failure = Failure.death(0)
            self._end(store, failure)

    def _end(self, store: TCPStore, failure: Failure) -> None:
        """End the process, unless its main thread does so already."""
        self._ending.acquire()
        if self._off.is_set():
            self._ending.release()
            return
        logging.getLogger("scaffold").debug("ended by the alarm of rank %d", failure.rank)
        # Rank 0 tells, or the next where it is gone.
        if self._context.rank == (1 if failure == Failure.death(0) else 0):
            _tell(failure)
        try:
            self.last_act(failure)
            self._wait_for_others(store, failure)
        finally:
            os._exit(failure.exit_code)


def _tell(failure: Failure) -> None:
    print(f"scaffold train: {failure.message}", file=sys.stderr, flush=True)


def _ending(error: ScaffoldError) -> Ending:
    cause = error.cause if isinstance(error, RankError) else error
    if isinstance(cause, StoppedError):
        return cause.ending
    return Ending.LOST_RANK if error.exit_code == ExitCode.RUN_AGAIN else Ending.FAILED


def _connect(store: TCPStore) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(store.host, store.port, None, False, wait_for_workers=False)
