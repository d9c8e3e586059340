"""Who am I: joining the ranks of one training, under any launcher.

``world`` finds the other processes; ``join`` checks that there are as many as asked for, binds the
device, and sets up two groups: the *data group* (NCCL on CUDA, gloo otherwise) for gradients and
sums, and the *control group* (always gloo) for everything that ranks decide together. Nothing is
ever decided over the device, so that a decision never waits for a kernel.

Three ways to be started are told apart:

* ``mpiexec -n N python -m mpi4py -m scaffold ...`` (or srun, flux run): MPI tells rank and size, and
  carries the address of the torch store, which rank 0 opens on a free port;
* ``torchrun --nproc-per-node N -m scaffold ...``: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in
  the environment; MPI is not touched;
* ``python -m scaffold ... --ranks 1``: one process, no group at all.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported, but not by name

from scaffold import provenance
from scaffold.errors import ExitCode, ScaffoldError, UserError
from scaffold.parallel import devices, environment, mpi
from scaffold.parallel.team import Solo, Team

TIMEOUT_VARIABLE = "SCAFFOLD_TIMEOUT"
"""Environment variable: seconds that a collective waits for a missing rank before it fails."""

DEFAULT_TIMEOUT_S = 900
"""Longer than any healthy wait: rank 0 reading a checkpoint of tens of GB while the others wait."""

_LOOK_EVERY_S = 0.1


class LostRankError(ScaffoldError):
    """Another rank died or no longer answers; the last checkpoint is safe, so the job can be run again."""

    exit_code = ExitCode.RUN_AGAIN


@dataclass(frozen=True)
class Place:
    """Where a process stands in its world, before torch knows of it."""

    launcher: str
    rank: int
    size: int


class Context(Team):
    """One rank of a training, with its device and groups.

    Attributes:
        rank: this process, 0 <= rank < size.
        size: number of ranks.
        local_rank: rank among those on this host.
        local_size: number of ranks on this host.
        hosts: host of each rank, in order of rank.
        device: what tensors live on.
        backend: of the data group: "nccl", "gloo", or "none" for one process.
        data_group: carries gradients and metric sums; None for one process.
        control_group: carries decisions (gloo); None for one process.
        store: where ranks leave notes for each other; None for one process.
        launcher: "mpi", "torchrun" or "single".
        threads: CPU threads of PyTorch.
    """

    def __init__(self, launcher: str = "single", device: torch.device | None = None) -> None:
        self.rank, self.size = 0, 1
        self.local_rank, self.local_size = 0, 1
        self.hosts = [socket.gethostname()]
        self.device = device or torch.device("cpu")
        self.backend = "none"
        self.data_group: dist.ProcessGroup | None = None
        self.control_group: dist.ProcessGroup | None = None
        self.store: TCPStore | None = None
        self.launcher = launcher
        self.threads = torch.get_num_threads()

    def exchange(self, value: Any) -> list[Any]:
        """See :meth:`Team.exchange`.

        Raises:
            LostRankError: a rank died, or did not come within the time limit.
        """
        if self.control_group is None:
            return [value]
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self.control_group)
        except RuntimeError as error:
            raise lost_rank(error) from error
        return values

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fill the CPU tensor ``tensor`` with rank 0's values, in place; return it. Collective."""
        if self.control_group is not None:
            try:
                dist.broadcast(tensor, src=0, group=self.control_group)
            except RuntimeError as error:
                raise lost_rank(error) from error
        return tensor

    @contextmanager
    def led_by_rank_0(self, topic: str) -> Iterator[None]:
        """Let the other ranks wait at the end of the block until rank 0 has left it, however long that takes.

        A collective would give rank 0 up after :func:`timeout`. Here only its death, with which the
        store goes, ends the waiting. Collective.

        Args:
            topic: names the block; used once in a training.

        Raises:
            LostRankError: rank 0 died.
        """
        try:
            yield
        finally:
            if self.store is not None:
                try:
                    if self.rank == 0:
                        self.store.set(f"led/{topic}", "done")
                    while not self.store.check([f"led/{topic}"]):
                        time.sleep(_LOOK_EVERY_S)
                except RuntimeError as error:
                    raise lost_rank(error) from error

    def describe(self) -> dict[str, Any]:
        """Return what results record of the world (plain JSON types)."""
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else provenance.cpu_name()
        return {
            "ranks": self.size,
            "hosts": len(set(self.hosts)),
            "backend": self.backend,
            "device": device,
            "device_type": self.device.type,
            "threads": self.threads,
            "launcher": self.launcher,
            "mpi_library": mpi.library() if self.launcher == "mpi" else None,
        }


class TorchrunTeam(Team):
    """The ranks that torchrun started, before they have met: good for what all find alike by themselves.

    Raises:
        UserError: torchrun's variables are not numbers.
    """

    def __init__(self) -> None:
        rank, size = environment.number("RANK"), environment.number("WORLD_SIZE")
        if rank is None or size is None or environment.number("MASTER_PORT") is None:
            raise UserError("RANK, WORLD_SIZE and MASTER_PORT must be numbers, as torchrun sets them")
        self.rank, self.size = rank, size

    def exchange(self, value: Any) -> list[Any]:
        """Return this rank's ``value`` in everyone's place."""
        return [value] * self.size


def world(ranks: int) -> Team:
    """Return the processes that this one was launched with, of whatever number.

    Args:
        ranks: number of ranks that the caller was told to expect.

    Raises:
        UserError: there is no MPI, or torchrun's variables are not numbers.
    """
    return TorchrunTeam() if environment.started_by_torchrun() else mpi.world(ranks)


def join(team: Team, ranks: int, threads: int | None = None) -> Context:
    """Join the ``ranks`` processes of this job. Collective.

    Args:
        team: what :func:`world` returned.
        ranks: number of ranks that the caller was told to expect; it is the authority.
        threads: CPU threads of PyTorch on each rank; by default OMP_NUM_THREADS, else the CPUs that
            it may use, divided by the ranks that may use them. It is always set: under mpiexec PyTorch would
            silently take 1.

    Raises:
        RankError: on every rank: the launcher started another number of ranks, a setting is wrong, or
            a rank has no device or shares one.
        LostRankError: a rank did not come within the time limit.
    """
    with team.together("starting"):
        timeout()
        if isinstance(team, TorchrunTeam):
            _check_torchrun(team.size, ranks)
        else:
            mpi.check_size(team.size, ranks)
    if isinstance(team, TorchrunTeam):
        context = _join_torchrun(team)
    else:
        context = Context(device=devices.bind(0)) if isinstance(team, Solo) else _join_mpi(team)
    context.threads = threads or _default_threads(context)
    torch.set_num_threads(context.threads)
    cpus = len(os.sched_getaffinity(0))
    if context.rank == 0 and context.threads > cpus:
        logging.getLogger("scaffold").warning(
            "%d threads on rank 0, which may use %d of its host's %d CPUs; where the launcher bound it to them (Open"
            " MPI binds each rank to a core): mpiexec --bind-to none",
            context.threads, cpus, os.cpu_count(),
        )  # fmt: skip
    return context


def lost_rank(error: BaseException) -> LostRankError:
    """Return the error to raise where a collective failed with ``error``."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return LostRankError(
        f"lost contact with another rank ({reason}); the last checkpoint is safe: run the same command again"
    )


def is_lost_rank(error: BaseException) -> bool:
    """Return whether ``error`` is how a collective fails when another rank is gone."""
    return isinstance(error, dist.DistBackendError | dist.DistNetworkError) or (
        isinstance(error, RuntimeError) and "/gloo/" in str(error)
    )


def timeout() -> timedelta:
    """Return how long a collective waits for a missing rank.

    Raises:
        UserError: the environment variable does not hold a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(f"{TIMEOUT_VARIABLE}={text!r} must be a positive number of seconds")
    return timedelta(seconds=int(text or DEFAULT_TIMEOUT_S))


def _check_torchrun(size: int, ranks: int) -> None:
    if size != ranks:
        raise UserError(
            f"started with WORLD_SIZE={size}, but --ranks {ranks} was given;"
            f" launch with: torchrun --nproc-per-node {ranks} -m scaffold ..."
        )


def _join_torchrun(team: TorchrunTeam) -> Context:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun's agent already serves a store at this address; without an agent rank 0 must.
    serve = team.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(address, port, None, serve, timeout(), wait_for_workers=False)
    return _form_groups(Place("torchrun", team.rank, team.size), store)


def _join_mpi(team: Team) -> Context:
    hosts = team.exchange(socket.gethostname())
    served: list[TCPStore] = []

    def serve() -> tuple[str, int]:
        address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
        served.append(TCPStore(address, 0, None, True, timeout(), wait_for_workers=False))
        return address, served[0].port

    address, port = team.share(serve, "opening the torch store")
    store = served[0] if served else TCPStore(address, port, None, False, timeout(), wait_for_workers=False)
    return _form_groups(Place("mpi", team.rank, team.size), store)


def _form_groups(place: Place, store: TCPStore) -> Context:
    context = Context(place.launcher)
    context.rank, context.size, context.store = place.rank, place.size, store
    hosts = _gather_hosts(place, store)
    context.hosts = hosts
    mates = [rank for rank, host in enumerate(hosts) if host == hosts[place.rank]]
    named = environment.local_rank(), environment.local_size()
    context.local_rank = mates.index(place.rank) if named[0] is None else named[0]
    context.local_size = len(mates) if named[1] is None else named[1]

    outcome: Any
    try:
        context.device = devices.bind(context.local_rank)
        outcome = (context.device.type, devices.unique_id(context.device))
    except ScaffoldError as error:
        outcome = error
    # The device must be bound before the first group exists.
    found = _agree_through_store(place, store, outcome)
    # All see the same, so that all refuse it alike.
    with _StoreTeam(place, store, "backend").together("choosing a backend"):
        context.backend = devices.backend_for([kind for kind, _ in found])
        if context.backend == "nccl":
            devices.refuse_shared_devices([(host, unique) for host, (_, unique) in zip(hosts, found, strict=True)])
    dist.init_process_group(
        context.backend,
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=timeout(),
        device_id=context.device if context.backend == "nccl" else None,
    )
    context.data_group = dist.group.WORLD
    context.control_group = dist.new_group(backend="gloo", timeout=timeout())
    try:
        dist.monitored_barrier(group=context.control_group, timeout=timeout(), wait_all_ranks=True)
    except RuntimeError as error:
        raise lost_rank(error) from error
    return context


def _gather_hosts(place: Place, store: TCPStore) -> list[str]:
    return [str(host) for host in _agree_through_store(place, store, socket.gethostname(), "host")]


def _agree_through_store(place: Place, store: TCPStore, outcome: Any, topic: str = "device") -> list[Any]:
    team = _StoreTeam(place, store, topic)
    return team.agree(outcome, f"finding its {topic}")


class _StoreTeam(Team):
    """Ranks that meet in the store alone, before any group exists; good for one exchange."""

    def __init__(self, place: Place, store: TCPStore, topic: str) -> None:
        self.rank, self.size = place.rank, place.size
        self._store, self._topic = store, topic

    def exchange(self, value: Any) -> list[Any]:
        """See :meth:`Team.exchange`."""
        import pickle

        try:
            self._store.set(f"{self._topic}/{self.rank}", pickle.dumps(value).hex())
            texts = [self._told_by(rank) for rank in range(self.size)]
            return [pickle.loads(bytes.fromhex(text)) for text in texts]  # noqa: S301 - our own bytes
        except RuntimeError as error:
            raise lost_rank(error) from error

    def _told_by(self, rank: int) -> str:
        try:
            return self._store.get(f"{self._topic}/{rank}").decode()
        except dist.DistStoreError as error:
            # The store is there, so it is the rank that is not.
            raise mpi.SilentRankError([rank], timeout().total_seconds(), f"finding its {self._topic}") from error


def _default_threads(context: Context) -> int:
    """Return OMP_NUM_THREADS, or this rank's share of the CPUs that it may use. Collective."""
    own = os.sched_getaffinity(0)
    everyones = context.exchange((context.hosts[context.rank], own))
    sharing = sum(host == context.hosts[context.rank] and bool(cpus & own) for host, cpus in everyones)
    return environment.number("OMP_NUM_THREADS") or max(1, len(own) // sharing)
