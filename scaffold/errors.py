"""Exit codes, and the exceptions that carry them to the user.

A verb that raises a :class:`ScaffoldError` ends with its ``exit_code`` and its message alone; a
traceback is printed only for what is not a ``ScaffoldError``, since that is a defect of ours. Where ranks
agreed upon it (:class:`scaffold.parallel.team.RankError`), the rank that raised it prints it.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """What a ``scaffold`` verb returns to the shell (the values follow ``sysexits.h``)."""

    DONE = 0
    INTERNAL = 1
    """An unexpected exception: a defect of Scaffold, with a traceback."""
    USER_ERROR = 2
    """A wrong config, argument, rank count or file that is not there: nothing was created."""
    DAMAGED = 65
    """A file of an earlier stage is truncated, unreadable or altered."""
    INCURABLE = 70
    """Training failed in a way that a retry cannot cure; ``failed.json`` says why."""
    IO_ERROR = 74
    """Writing failed (disk full, quota, permissions); older files are intact."""
    RUN_AGAIN = 75
    """Stopped before the end (time limit, signal) with everything saved: run the same command again."""


class Ending(StrEnum):
    """Why an attempt at a training ended."""

    CONVERGED = "converged"
    USED_UP = "epochs used up"
    PUBLISHED = "published"
    """Nothing was left to train: an earlier attempt's result was written again."""
    SIGNAL = "signal"
    """Asked to stop, by a scheduler or a person."""
    TIME_LIMIT = "time limit"
    LOST_RANK = "lost rank"
    """Another rank was killed or no longer answered."""
    KILLED = "killed"
    """No end was recorded."""
    FAILED = "failed"


class ScaffoldError(Exception):
    """Base of all errors whose message is meant for the user."""

    exit_code = ExitCode.INTERNAL


class UserError(ScaffoldError):
    """The user can mend it: a wrong argument, rank count, or missing input."""

    exit_code = ExitCode.USER_ERROR


class DamagedFileError(ScaffoldError):
    """A file of an earlier stage cannot be trusted.

    Args:
        path: the file.
        problem: what is wrong with it, as a clause ("is truncated: 12 of 4096 bytes").
        remedy: the command that rebuilds it.
    """

    exit_code = ExitCode.DAMAGED

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        self.path, self.problem, self.remedy = str(path), problem, remedy
        super().__init__(f"{path} {problem}; rebuild it with: {remedy}")

    def __reduce__(self) -> tuple[type[DamagedFileError], tuple[str, str, str]]:
        return type(self), (self.path, self.problem, self.remedy)


class IncurableError(ScaffoldError):
    """Training cannot succeed however often it is retried (non-finite loss, no progress)."""

    exit_code = ExitCode.INCURABLE


class WriteError(ScaffoldError):
    """A file could not be written; what stood there before is intact."""

    exit_code = ExitCode.IO_ERROR


class StoppedError(ScaffoldError):
    """Work stopped on request after saving; run the same command again.

    Args:
        message: for the user.
        ending: the kind of request: ``SIGNAL`` or ``TIME_LIMIT``.
    """

    exit_code = ExitCode.RUN_AGAIN

    def __init__(self, message: str, ending: Ending = Ending.SIGNAL) -> None:
        self.ending = ending
        super().__init__(message)

    def __reduce__(self) -> tuple[type[StoppedError], tuple[str, Ending]]:
        return type(self), (str(self), self.ending)
