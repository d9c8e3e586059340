"""What is made of the ranks' facts and times."""

import re
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore

from scaffold.errors import ExitCode
from scaffold.parallel import probe
from scaffold.parallel.launch import Context
from scaffold.parallel.probe import Bandwidth, RankFacts
from scaffold.parallel.team import RankError


def facts(rank, host="a", cpus=(0, 1), **others):
    """Return a rank of two on a host of eight CPUs, its own two of them."""
    known = {"launcher_rank": rank, "local_rank": rank % 2, "local_size": 2, "host_cpus": 8, "job": None}
    return RankFacts(rank=rank, host=host, cpus=cpus, pid=1, device="CPU", device_id="", **(known | others))


def test_a_good_launch_raises_no_doubt():
    assert probe.doubts([facts(0), facts(1, cpus=(2, 3)), facts(2, "b"), facts(3, "b")]) == []


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([facts(0, cpus=(5,)), facts(1, cpus=(5,))], r"a: 2 ranks share 1 CPU \(5\) of its 8; give each rank"),
        ([facts(0, local_size=4), facts(1, local_size=4)], "a: runs 2 ranks, but the launcher's variables say 4"),
        ([facts(0), facts(1, launcher_rank=3)], "rank 1 is rank 3 to the launcher's variables"),
    ],
)
def test_what_a_launcher_did_wrong_is_told(ranks, told):
    """Each of them halves a training's speed, or profiles the wrong rank, without any error."""
    (doubt,) = probe.doubts(ranks)
    assert re.search(told, doubt)


def test_ranks_that_are_spread_unevenly_are_no_mistake():
    """Slurm tells tasks and nodes, whose quotient is rounded up: two on each of two hosts, where one has the third."""
    assert probe.doubts([facts(0), facts(1, cpus=(2, 3)), facts(2, "b")]) == []


def test_bandwidths_are_those_of_the_nccl_tests():
    """Another definition could not be compared with any published figure."""
    row = Bandwidth.of("data", "nccl", 8 * 10**9, [4.0, 2.0, 1.0], ranks=4)
    assert (row.median_s, row.min_s, row.max_s) == (2.0, 1.0, 4.0)
    assert row.algorithm_gb_s == pytest.approx(4.0)
    assert row.bus_gb_s == pytest.approx(6.0)


def test_sets_of_cpus_are_written_as_linux_does():
    assert probe.ranges([]) == ""
    assert probe.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.fixture
def world_of_one():
    """A rank that has both groups, as ranks with GPUs have, though there is no other and no GPU."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    context = Context("mpi")
    context.store, context.backend = store, "nccl"
    context.data_group = context.control_group = dist.group.WORLD
    yield context
    dist.destroy_process_group()


def test_both_groups_are_measured_at_every_size(world_of_one):
    """The data group carries the gradients: it is the one whose speed counts, and GPUs alone have it apart."""
    rows = list(probe.bandwidths(world_of_one, 5, gloo_bytes=[8, 64], nccl_bytes=[4096], repeats=3))
    assert [(row.group, row.bytes, row.repeats) for row in rows] == [
        ("control", 8, 3),
        ("control", 64, 3),
        ("data", 4096, 3),
    ]
    world_of_one.backend = "gloo"
    assert {row.group for row in probe.bandwidths(world_of_one, 5, gloo_bytes=[8], repeats=1)} == {"control"}


def test_a_wrong_sum_is_refused(world_of_one, monkeypatch):
    """A fast network that adds wrongly would pass for a good one."""
    real = dist.all_reduce

    def broken(tensor, **options):
        tensor[-1] += 1
        return real(tensor, **options)

    monkeypatch.setattr(dist, "all_reduce", broken)
    with pytest.raises(RankError, match="got 1 to 2, where 1 is the sum") as caught:
        list(probe.bandwidths(world_of_one, 5, gloo_bytes=[64]))
    assert caught.value.exit_code == ExitCode.INTERNAL
