"""What a launcher has made of a job: where each rank runs, and how fast the ranks sum.

Bandwidths are defined as NCCL's tests define them. Each of n ranks holds S bytes; an all-reduce takes the
time t, the median over repeats of the slowest rank's.

* Algorithm bandwidth: S / t, what a training sees of it.
* Bus bandwidth: S / t * 2 (n - 1) / n, the traffic of each rank's link under a ring, which any
  number of ranks can reach alike; the one to compare with the hardware.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scaffold.errors import ExitCode, ScaffoldError
from scaffold.parallel import devices, environment
from scaffold.parallel.launch import Context, lost_rank
from scaffold.parallel.mpi import SilentRankError
from scaffold.wording import count

GLOO_BYTES = (8, 2**16, 2**20, 2**24)
NCCL_BYTES = (8, 2**20, 2**24, 2**28)
REPEATS = 7

_POLL_S = 0.0005
_VERDICT_S = 5.0


class WrongSumError(ScaffoldError):
    """An all-reduce returned another sum than that of the ranks' values: the network or its library is broken."""

    exit_code = ExitCode.INTERNAL


@dataclass(frozen=True)
class RankFacts:
    """Where one rank runs.

    Attributes:
        rank: in the world.
        launcher_rank: what the launcher's variables say it is, or None.
        host: its name.
        pid: process id there.
        local_rank: rank among those on the host, which picks the device.
        local_size: number of ranks on the host.
        device: name of its GPU or "CPU".
        device_id: what tells the GPU from others of the host; empty for the CPU.
        cpus: the CPUs that it may use, ascending.
        host_cpus: number of CPUs of the host.
        job: the scheduler's job, or None.
    """

    rank: int
    launcher_rank: int | None
    host: str
    pid: int
    local_rank: int
    local_size: int
    device: str
    device_id: str
    cpus: tuple[int, ...]
    host_cpus: int
    job: str | None


@dataclass(frozen=True)
class Bandwidth:
    """One measurement of an all-reduce.

    Attributes:
        group: "control" or "data", see :mod:`scaffold.parallel.launch`.
        backend: "gloo" or "nccl".
        bytes: of each rank's tensor.
        repeats: number of timed all-reduces.
        median_s: over the repeats, of the slowest rank's time, seconds.
        min_s: the fastest repeat.
        max_s: the slowest repeat.
        algorithm_gb_s: bytes / median_s, in 10^9 bytes/s.
        bus_gb_s: algorithm_gb_s * 2 (n - 1) / n.
    """

    group: str
    backend: str
    bytes: int
    repeats: int
    median_s: float
    min_s: float
    max_s: float
    algorithm_gb_s: float
    bus_gb_s: float

    @classmethod
    def of(cls, group: str, backend: str, size: int, seconds: Sequence[float], ranks: int) -> Bandwidth:
        """Return the measurement that ``seconds``, the slowest rank's of each repeat, are."""
        median = statistics.median(seconds)
        algorithm = size / median / 1e9
        bus = algorithm * 2 * (ranks - 1) / ranks
        return cls(group, backend, size, len(seconds), median, min(seconds), max(seconds), algorithm, bus)


def own_facts(context: Context) -> RankFacts:
    """Return where this rank runs."""
    cuda = context.device.type == "cuda"
    return RankFacts(
        rank=context.rank,
        launcher_rank=environment.world_rank(),
        host=socket.gethostname(),
        pid=os.getpid(),
        local_rank=context.local_rank,
        local_size=context.local_size,
        device=torch.cuda.get_device_name(context.device) if cuda else "CPU",
        device_id=devices.unique_id(context.device),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        host_cpus=os.cpu_count() or 1,
        job=environment.job_id(),
    )


def doubts(ranks: Sequence[RankFacts]) -> list[str]:
    """Return what looks like a mistake of the launcher that started ``ranks``, in words."""
    found = []
    hosts = Counter(facts.host for facts in ranks)
    for host, number in hosts.items():
        mates = [facts for facts in ranks if facts.host == host]
        cpus = {cpu for facts in mates for cpu in facts.cpus}
        if len(cpus) < number:
            found.append(
                f"{host}: {number} ranks share {count(len(cpus), 'CPU')} ({ranges(sorted(cpus))}) of its"
                f" {mates[0].host_cpus}; give each rank CPUs of its own (srun --cpus-per-task, mpiexec --bind-to)"
            )
        wrong = sorted({facts.local_size for facts in mates} - {number})
        # A quotient of tasks and nodes is rounded up, so that it says too much where ranks are spread unevenly.
        if wrong and len(set(hosts.values())) == 1:
            found.append(f"{host}: runs {count(number, 'rank')}, but the launcher's variables say {wrong[0]}")
    renamed = [facts for facts in ranks if facts.launcher_rank not in (None, facts.rank)]
    if renamed:
        first = renamed[0]
        found.append(f"rank {first.rank} is rank {first.launcher_rank} to the launcher's variables")
    return found


def bandwidths(
    context: Context,
    limit_s: float,
    gloo_bytes: Sequence[int] = GLOO_BYTES,
    nccl_bytes: Sequence[int] = NCCL_BYTES,
    repeats: int = REPEATS,
) -> Iterator[Bandwidth]:
    """Yield the all-reduce bandwidths of the control group and, on GPUs, of the data group. Collective.

    Nothing for a single process.

    Args:
        context: this rank.
        limit_s: how long to wait for a rank that hangs.
        gloo_bytes: sizes for the control group.
        nccl_bytes: sizes for the data group.
        repeats: timed all-reduces of each size.

    Raises:
        SilentRankError: a rank hangs; names it.
        LostRankError: a rank died.
        RankError: on every rank: a sum is wrong.
    """
    if context.control_group is not None:
        for size in gloo_bytes:
            yield _measure(context, "control", context.control_group, torch.device("cpu"), size, repeats, limit_s)
    if context.data_group is not None and context.backend == "nccl":
        for size in nccl_bytes:
            yield _measure(context, "data", context.data_group, context.device, size, repeats, limit_s)


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending ``numbers`` as Linux writes sets of CPUs: "0-3,8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def to_json(context: Context, ranks: Sequence[RankFacts], measured: Sequence[Bandwidth]) -> dict[str, Any]:
    """Return what was found as plain JSON types."""
    return {
        "world": context.describe(),
        "ranks": [asdict(facts) for facts in ranks],
        "all_reduce": [asdict(bandwidth) for bandwidth in measured],
    }


def _measure(
    context: Context,
    name: str,
    group: dist.ProcessGroup,
    device: torch.device,
    size: int,
    repeats: int,
    limit_s: float,
) -> Bandwidth:
    tensor = torch.full((max(1, size // 4),), float(context.rank + 1), device=device)
    action = f"all-reduce of {tensor.numel() * 4} bytes in the {name} group"
    try:
        # The first one also connects the ranks, and is the one in which a broken rank shows.
        _wait(dist.all_reduce(tensor, group=group, async_op=True), limit_s)
        with context.together(action):
            _check_sum(tensor, context)
        own = [_seconds(tensor, group, context) for _ in range(repeats)]
    except (RuntimeError, TimeoutError) as error:
        silent = _silent_ranks(context)
        if silent:
            raise SilentRankError(silent, limit_s, action) from error
        raise lost_rank(error) from error
    slowest = [max(times) for times in zip(*context.exchange(own), strict=True)]
    return Bandwidth.of(name, dist.get_backend(group), tensor.numel() * 4, slowest, context.size)


def _wait(work: Any, limit_s: float) -> None:
    """Wait for ``work`` without blocking in a library that would end the process, or wait for ever."""
    until = time.monotonic() + limit_s
    while not work.is_completed():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(_POLL_S)
    work.wait()


def _check_sum(tensor: torch.Tensor, context: Context) -> None:
    expected = context.size * (context.size + 1) / 2
    low, high = float(tensor.min()), float(tensor.max())
    if (low, high) != (expected, expected):
        raise WrongSumError(f"got {low:g} to {high:g}, where {expected:g} is the sum")


def _seconds(tensor: torch.Tensor, group: dist.ProcessGroup, context: Context) -> float:
    """Return how long one all-reduce takes on this rank, seconds; all ranks start together."""
    dist.barrier(group=context.control_group)
    start = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - start


def _silent_ranks(context: Context) -> list[int]:
    """Return which ranks do not come here within a few seconds, as rank 0 finds; [0] if it does not come itself."""
    store = context.store
    if store is None:
        return []
    try:
        store.set(f"alive/{context.rank}", "")
        if context.rank != 0:
            told = _appears(store, "silent", time.monotonic() + 2 * _VERDICT_S)
            return [int(rank) for rank in json.loads(store.get("silent"))] if told else [0]
        until = time.monotonic() + _VERDICT_S
        silent = [rank for rank in range(context.size) if not _appears(store, f"alive/{rank}", until)]
        store.set("silent", json.dumps(silent))
        return silent
    except RuntimeError:
        return [] if context.rank == 0 else [0]


def _appears(store: TCPStore, key: str, until: float) -> bool:
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
