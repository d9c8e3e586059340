"""Log lines and progress bars.

Rank 0 speaks, on standard error: a live bar when that is a terminal, plain log lines otherwise (a
batch job's log must not fill with control characters).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

_LINE_EVERY_S = 10.0
_T = TypeVar("_T")


def setup_logging(rank: int = 0, verbose: bool = False) -> None:
    """Send the log to standard error, tagged with the rank; ranks other than 0 show warnings only."""
    handler = _ToStandardError()
    tag = f" [rank {rank}]" if rank else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s{tag} %(levelname).1s %(message)s", "%H:%M:%S"))
    level = logging.WARNING if rank else logging.INFO
    logging.basicConfig(level=logging.DEBUG if verbose else level, handlers=[handler], force=True)
    for noisy in ("numba", "matplotlib", "PIL"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is when a line comes, which need not be what it was at the start."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


def track(items: Iterable[_T], what: str, total: int, rank: int = 0) -> Iterator[_T]:
    """Yield ``items`` while showing how far the work is.

    Args:
        items: what is worked on.
        what: a few words for the bar ("rendering").
        total: how many items there are.
        rank: only rank 0 shows anything.
    """
    if rank:
        yield from items
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as rich_track

        yield from rich_track(items, what, total=total, console=Console(stderr=True), transient=True)
    else:
        yield from _logged(items, what, total)


def _logged(items: Iterable[_T], what: str, total: int) -> Iterator[_T]:
    log = logging.getLogger("scaffold")
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            log.info("%s: %d of %d", what, done, total)
        yield item
