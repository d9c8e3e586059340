"""A team of MPI ranks, for data generation and for the rendezvous of training.

mpi4py is imported inside functions: importing it initialises MPI, which a loader process or
``scaffold --help`` must not do.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from scaffold.errors import ExitCode, ScaffoldError, UserError
from scaffold.parallel import environment
from scaffold.parallel.team import Solo, Team
from scaffold.wording import count

_ROLL_CALL = 7
"""Tag of the messages of a roll call."""

_LOOK_EVERY_S = 0.02
_VERDICT_S = 5.0


class SilentRankError(ScaffoldError):
    """Ranks of the job do not answer.

    Args:
        ranks: which.
        limit_s: how long they were waited for.
        action: what they should have come to.
    """

    exit_code = ExitCode.RUN_AGAIN

    def __init__(self, ranks: list[int], limit_s: float, action: str = "starting") -> None:
        self.ranks = ranks
        named = f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} do"
        super().__init__(f"{named} not answer ({action}; waited for up to {limit_s:g} s)")
        self._arguments = (ranks, limit_s, action)

    def __reduce__(self) -> tuple[type[SilentRankError], tuple[list[int], float, str]]:
        return type(self), self._arguments


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
    claimed = environment.world_size()
    if found == 1 and claimed is not None and claimed > 1:
        raise UserError(
            f"--ranks {ranks}: the launcher started {claimed} processes ({environment.world_size_source()}={claimed}),"
            f" and each of them is alone (rank 0 of 1 to {library()}): the launcher and that library do not speak"
            f" the same process-management interface; {_remedy(ranks)}"
        )
    if found != ranks:
        hint = f" (a launcher of another MPI library than mpi4py's starts N singletons; {_remedy(ranks)})"
        raise UserError(
            f"started with {count(found, 'rank')}, but --ranks {ranks} was given"
            f"{hint if found == 1 else ''}; launch with: {launcher(ranks)} python -m mpi4py -m scaffold ..."
        )


def launcher(ranks: int, nodes: int | None = None) -> str:
    """Return what starts ``ranks`` ranks where this process runs: the scheduler's own launcher, else mpiexec.

    Args:
        ranks: number of ranks.
        nodes: how many nodes they are spread over; None leaves that to the scheduler.
    """
    where = "" if nodes is None else f" --nodes {nodes}"
    return {
        "slurm": f"srun{where} --ntasks {ranks}",
        "flux": f"flux run{where} --ntasks {ranks}",
    }.get(environment.scheduler() or "", f"mpiexec -n {ranks}")


def library() -> str:
    """Return name and version of the MPI library, in one line, or "no MPI" where it is not loaded."""
    if "mpi4py.MPI" not in sys.modules:
        return "no MPI"
    from mpi4py import MPI

    first = MPI.Get_library_version().strip("\x00 \n").splitlines()[0]
    return " ".join(first.split())


def roll_call(team: Team, limit_s: float) -> None:
    """Make sure that every rank of ``team`` runs, where a collective would wait for ever. Collective.

    Raises:
        SilentRankError: on every rank that runs: one does not, and which, as rank 0 found; where rank 0
            itself is silent, that.
    """
    if not isinstance(team, MpiTeam):
        return
    from mpi4py import MPI

    if team.rank != 0:
        MPI.COMM_WORLD.isend(None, dest=0, tag=_ROLL_CALL)
        # Rank 0 takes the whole time limit to find out who is silent.
        if not _comes(0, time.monotonic() + limit_s + _VERDICT_S):
            raise SilentRankError([0], limit_s)
        silent = _hear(0)
    else:
        until = time.monotonic() + limit_s
        others = range(1, team.size)
        silent = [rank for rank in others if not _comes(rank, until)]
        for rank in others:
            if rank not in silent:
                _hear(rank)
            MPI.COMM_WORLD.isend(silent, dest=rank, tag=_ROLL_CALL)
    if silent:
        raise SilentRankError(silent, limit_s)


def _comes(rank: int, until: float) -> bool:
    """Return whether a message of the roll call from ``rank`` comes before the time ``until``."""
    from mpi4py import MPI

    while not MPI.COMM_WORLD.iprobe(source=rank, tag=_ROLL_CALL):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _hear(rank: int) -> Any:
    """Return what ``rank`` says in the roll call, which has come."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.recv(source=rank, tag=_ROLL_CALL)


def _remedy(ranks: int) -> str:
    """Return what makes the present scheduler's launcher speak to the MPI library."""
    own = f"use the mpiexec of the MPI library that mpi4py loads: mpiexec -n {ranks} ..."
    if environment.scheduler() == "slurm":
        return f"try srun --mpi=pmi2 (MPICH, Intel MPI) or --mpi=pmix (Open MPI), see srun --mpi=list, or {own}"
    if environment.scheduler() == "flux":
        return f"try flux run -o pmi=simple (MPICH, Intel MPI) or -o pmi=pmix (Open MPI), or {own}"
    stray = environment.world_size_source()
    unset = f"; if no launcher was used, unset {stray}" if stray else ""
    return own + unset
