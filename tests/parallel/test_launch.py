"""Finding the world, and refusing a wrong one, without starting ranks."""

import pickle

import pytest
import torch
from torch.distributed import TCPStore

from scaffold.errors import ExitCode, UserError
from scaffold.parallel import launch
from scaffold.parallel.mpi import SilentRankError
from scaffold.parallel.team import RankError


@pytest.fixture
def clean(monkeypatch):
    """Take away what a launcher around the tests may have set."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield monkeypatch
    torch.set_num_threads(threads)


def test_a_single_process_needs_no_group(clean):
    """A laptop without MPI or a network trains too."""
    context = launch.join(launch.world(1), 1, threads=2)
    assert (context.rank, context.size, context.backend, context.control_group) == (0, 1, "none", None)
    assert context.threads == torch.get_num_threads() == 2
    assert context.exchange("x") == ["x"]


def test_threads_are_explicit(clean):
    """Under mpiexec PyTorch silently takes one thread; a measurement must know what it ran with."""
    clean.setenv("OMP_NUM_THREADS", "3")
    assert launch.join(launch.world(1), 1).threads == torch.get_num_threads() == 3
    clean.setenv("OMP_NUM_THREADS", "")
    assert launch.join(launch.world(1), 1).threads >= 1


class Bound(launch.Context):
    """Rank 0 of three on two hosts, which may use ``own`` of its CPUs."""

    def __init__(self, own, *others):
        super().__init__()
        self.hosts = ["a", *(host for host, _ in others)]
        self._answers = [("a", own), *others]

    def exchange(self, value):
        return [value, *self._answers[1:]]


@pytest.mark.parametrize(
    ("others", "threads"),
    [
        ([("a", {0, 1, 2, 3}), ("b", {0, 1, 2, 3})], 2),
        ([("a", {4, 5, 6, 7}), ("b", {0, 1, 2, 3})], 4),
        ([("a", {3, 4}), ("a", {0})], 1),
    ],
)
def test_threads_are_a_share_of_the_cpus_that_a_rank_may_use(clean, others, threads):
    """A launcher that gives each rank four cores of its own would have two of them idle."""
    clean.setenv("OMP_NUM_THREADS", "")
    clean.setattr(launch.os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert launch._default_threads(Bound({0, 1, 2, 3}, *others)) == threads


def test_more_threads_than_cpus_are_told(clean, caplog):
    """Hazard 54: Open MPI's mpiexec binds each rank to one core unless told otherwise, and nothing else shows it."""
    clean.setattr(launch.os, "sched_getaffinity", lambda process: {5})
    launch.join(launch.world(1), 1, threads=1)
    assert "bind" not in caplog.text
    launch.join(launch.world(1), 1, threads=2)
    assert "2 threads on rank 0, which may use 1 of" in caplog.text
    assert "mpiexec --bind-to none" in caplog.text


def test_torchrun_with_another_size_is_refused_before_any_connection(clean):
    """Hazard 52: each process would be its own rank 0 of 1."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "9"}.items():
        clean.setenv(name, value)
    with pytest.raises(RankError, match=r"WORLD_SIZE=4, but --ranks 2.*torchrun --nproc-per-node 2") as caught:
        launch.join(launch.world(2), 2)
    assert caught.value.exit_code == ExitCode.USER_ERROR


def test_a_wrong_timeout_is_refused_by_name(clean):
    """A typing error must not become an endless or instant time limit."""
    clean.setenv(launch.TIMEOUT_VARIABLE, "5m")
    with pytest.raises(UserError, match="SCAFFOLD_TIMEOUT='5m'"):
        launch.timeout()
    clean.setenv(launch.TIMEOUT_VARIABLE, "60")
    assert launch.timeout().total_seconds() == 60


def test_what_a_lost_rank_looks_like():
    """A peer's death is no defect of ours: the exit code says to run again."""
    gloo = RuntimeError("[/x/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
    assert launch.is_lost_rank(gloo)
    assert not launch.is_lost_rank(RuntimeError("shapes differ"))
    assert launch.lost_rank(gloo).exit_code == ExitCode.RUN_AGAIN


def test_a_rank_that_does_not_come_to_the_store_is_named(clean):
    """Of a thousand ranks one is stuck on a bad node; "wait timeout" tells nobody on which."""
    clean.setenv(launch.TIMEOUT_VARIABLE, "1")
    store = TCPStore("127.0.0.1", 0, None, True, launch.timeout(), wait_for_workers=False)
    team = launch._StoreTeam(launch.Place("mpi", 0, 3), store, "host")
    store.set("host/1", store_text("b"))
    with pytest.raises(SilentRankError, match=r"rank 2 does not answer \(finding its host; waited for up to 1 s\)"):
        team.exchange("a")
    store.set("host/2", store_text("c"))
    assert team.exchange("a") == ["a", "b", "c"]


def store_text(value):
    """Return what a rank leaves in the store for ``value``."""
    return pickle.dumps(value).hex()
