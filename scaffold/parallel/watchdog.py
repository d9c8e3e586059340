"""A time limit around code that may hang where Python cannot interrupt it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_GRACE_S = 2.0


@contextmanager
def watchdog(limit_s: float, message: str) -> Iterator[None]:
    """Print ``message`` and end this process (SIGTERM) if the block takes longer than ``limit_s`` seconds.

    A thread would not do: starting MPI holds the interpreter's lock until all ranks have come. So a
    child process watches, which must be forked before MPI or CUDA start. The end comes a little after the message, so
    that the other ranks' messages are out before the launcher ends them all.

    Args:
        limit_s: how long the block may take.
        message: for the user, on standard error, without a newline.
    """
    finished, alive = os.pipe()
    watched = os.getpid()
    watcher = os.fork()
    if watcher == 0:
        os.close(alive)
        _watch(finished, watched, limit_s, message)
    os.close(finished)
    try:
        yield
    finally:
        os.close(alive)
        os.waitpid(watcher, 0)


def _watch(finished: int, watched: int, limit_s: float, message: str) -> None:
    """Wait until the pipe ``finished`` closes, as it also does when the watched process dies; never returns."""
    try:
        if not select.select([finished], [], [], limit_s)[0]:
            os.write(2, f"{message}\n".encode())
            if not select.select([finished], [], [], _GRACE_S)[0]:
                os.kill(watched, signal.SIGTERM)
    finally:
        os._exit(0)
