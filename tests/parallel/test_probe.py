"""What is made of the ranks' facts and times."""

import re

import pytest

from scaffold.parallel import probe
from scaffold.parallel.probe import Bandwidth, RankFacts


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


def test_bandwidths_are_those_of_the_nccl_tests():
    """Another definition could not be compared with any published figure."""
    row = Bandwidth.of("data", "nccl", 8 * 10**9, [4.0, 2.0, 1.0], ranks=4)
    assert (row.median_s, row.min_s, row.max_s) == (2.0, 1.0, 4.0)
    assert row.algorithm_gb_s == pytest.approx(4.0)
    assert row.bus_gb_s == pytest.approx(6.0)


def test_sets_of_cpus_are_written_as_linux_does():
    assert probe.ranges([]) == ""
    assert probe.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
