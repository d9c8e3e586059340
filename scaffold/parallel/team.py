"""Deciding and failing together: the one way in which ranks agree on an outcome.

A rank that raises alone leaves its peers waiting in the next collective. So whatever may fail on one
rank is exchanged first; then all ranks go on, or all raise the same error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from scaffold.errors import ExitCode, ScaffoldError

_T = TypeVar("_T")


class RankError(ScaffoldError):
    """A rank failed; raised alike on all of them, naming the first such rank and its cause.

    Attributes:
        rank: the lowest rank that failed.
        exit_code: that of the cause, if it was a :class:`ScaffoldError`.
    """

    def __init__(self, rank: int, size: int, action: str, cause: BaseException) -> None:
        self.rank = rank
        self.cause = cause
        self.exit_code = cause.exit_code if isinstance(cause, ScaffoldError) else ExitCode.INTERNAL
        detail = str(cause) if isinstance(cause, ScaffoldError) else f"{type(cause).__name__}: {cause}"
        super().__init__(detail if size == 1 else f"rank {rank} of {size}, {action}: {detail}")
        self._arguments = (rank, size, action, cause)

    @property
    def defect(self) -> BaseException | None:
        """The unexpected exception, with its traceback, on a rank that raised it; None on the others."""
        return None if isinstance(self.__cause__, ScaffoldError) else self.__cause__

    def __reduce__(self) -> tuple[type[RankError], tuple[int, int, str, BaseException]]:
        return type(self), self._arguments


class Team(ABC):
    """A set of ranks that work on one thing.

    Attributes:
        rank: this process, 0 <= rank < size.
        size: number of ranks.
    """

    rank: int
    size: int

    @abstractmethod
    def exchange(self, value: Any) -> list[Any]:
        """Give ``value`` (small, picklable) to all ranks; return everyone's, in order of rank. Collective."""

    def agree(self, outcome: _T | BaseException, action: str = "working") -> list[_T]:
        """Exchange outcomes; raise on all ranks if any is an exception. Collective.

        Args:
            outcome: this rank's result, or what it caught.
            action: what was being done, for the message ("writing part 3").

        Returns:
            Everyone's result, in order of rank.

        Raises:
            RankError: on every rank, when the outcome of any rank is an exception.
        """
        outcomes = self.exchange(_portable(outcome))
        for rank, item in enumerate(outcomes):
            if isinstance(item, RankError):
                # Agreed upon in an inner block already; all ranks hold it, each with its own traceback.
                raise outcome if isinstance(outcome, RankError) else item
            if isinstance(item, BaseException):
                own = outcome if isinstance(outcome, BaseException) else None
                raise RankError(rank, self.size, action, item) from own
        return cast(list[_T], outcomes)

    @contextmanager
    def together(self, action: str) -> Iterator[None]:
        """Run a block whose exceptions are agreed upon at its end: all ranks leave it well, or all raise.

        The block itself must not contain a collective after a point where one rank may raise.
        """
        try:
            yield
        except Exception as error:
            self.agree(error, action)
        else:
            self.agree(None, action)

    def decide(self, value: _T | None = None) -> _T:
        """Return rank 0's ``value`` on every rank (the others' are ignored). Collective."""
        return cast(_T, self.exchange(value if self.rank == 0 else None)[0])

    def share(self, make: Callable[[], _T], action: str) -> _T:
        """Return on every rank what ``make`` returns on rank 0, where alone it is called. Collective.

        Raises:
            RankError: on every rank, when ``make`` raised.
        """
        outcome: _T | Exception | None = None
        if self.rank == 0:
            try:
                outcome = make()
            except Exception as error:
                outcome = error
        return cast(_T, self.agree(outcome, action)[0])

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self.exchange(None)


class Solo(Team):
    """A team of one process."""

    rank = 0
    size = 1

    def exchange(self, value: Any) -> list[Any]:
        """See :meth:`Team.exchange`."""
        return [value]


def _portable(outcome: _T) -> _T | RuntimeError:
    """Return ``outcome``, or a plain stand-in for an exception that cannot be pickled."""
    if isinstance(outcome, BaseException):
        import pickle

        try:
            pickle.loads(pickle.dumps(outcome))  # noqa: S301 - our own bytes
        except Exception:
            return RuntimeError(f"{type(outcome).__name__}: {outcome}")
    return outcome
