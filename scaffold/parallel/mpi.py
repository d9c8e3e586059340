"""A team of MPI ranks, for data generation and for the rendezvous of training.

mpi4py is imported inside functions: importing it initialises MPI, which a loader process or
``scaffold --help`` must not do.
"""

from __future__ import annotations

from typing import Any

from scaffold.errors import UserError
from scaffold.parallel import environment
from scaffold.parallel.team import Solo, Team


class MpiTeam(Team):
    """All ranks of ``MPI.COMM_WORLD``."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.rank
        self.size = self._comm.size

    def exchange(self, value: Any) -> list[Any]:
        """See :meth:`Team.exchange`."""
        return self._comm.allgather(value)


def world(ranks: int) -> Team:
    """Return the team of processes that this one was launched in, of whatever size (:func:`check_size`).

    Args:
        ranks: the number of ranks that the caller was told to expect.

    Raises:
        UserError: MPI could not be loaded.
    """
    if ranks == 1 and environment.world_size() in (None, 1):
        return Solo()
    try:
        return MpiTeam()
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"--ranks {ranks} needs MPI, which could not be loaded ({error}); install the extra [mpich],"
            " or mpi4py with the MPI library of the site"
        ) from error


def check_size(found: int, ranks: int) -> None:
    """Refuse a world of ``found`` ranks where ``ranks`` were asked for.

    Raises:
        UserError: with the usual cause, a launcher that belongs to another MPI library.
    """
    if found != ranks:
        hint = " (a launcher of another MPI library than mpi4py's starts N singletons)" if found == 1 else ""
        raise UserError(
            f"started with {found} rank{'s' if found != 1 else ''}, but --ranks {ranks} was given{hint};"
            f" launch with: mpiexec -n {ranks} python -m mpi4py -m scaffold ..."
        )
