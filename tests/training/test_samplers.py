"""Which samples each replica sees, and when."""

import os

import pytest
from tiny_learner import CPU, TinySamples

from scaffold.training.samplers import TrainingSampler, ValidationSampler, loader


def epoch(length, replicas, seed=1, number=1):
    dealt = []
    for replica in range(replicas):
        sampler = TrainingSampler(length, replica, replicas, seed)
        sampler.set_epoch(number)
        dealt.append(list(sampler))
        assert len(dealt[-1]) == len(sampler)
    return dealt


@pytest.mark.parametrize(("length", "replicas"), [(12, 1), (12, 3), (13, 4), (2, 5)])
def test_every_sample_is_seen_and_replicas_have_equally_many(length, replicas):
    """Unequal numbers of steps leave the longer replica waiting in an all-reduce for ever."""
    dealt = epoch(length, replicas)
    assert len({len(part) for part in dealt}) == 1
    assert {sample for part in dealt for sample in part} == set(range(length))
    assert sum(map(len, dealt)) < length + replicas


def test_replicas_deal_out_one_common_order():
    """Shuffled apart, two replicas would train on the same sample and miss others."""
    (order,), (first, second) = epoch(12, 1), epoch(12, 2)
    assert [sample for pair in zip(first, second, strict=True) for sample in pair] == order


def test_the_order_has_not_changed():
    """If this fails, every training sees its samples otherwise: raise the code version of the stage ``train``."""
    assert epoch(12, 1, seed=42) == [[6, 7, 5, 11, 2, 3, 9, 0, 8, 1, 10, 4]]
    assert epoch(12, 1, seed=42, number=2) == [[8, 7, 2, 0, 3, 1, 5, 4, 11, 6, 10, 9]]


def test_order_depends_on_seed_and_epoch_alone():
    """A resumed run must continue in the order; equal orders would make seeds dependent samples."""
    assert epoch(12, 1) == epoch(12, 1)
    orders = [tuple(epoch(12, 1, seed, number)[0]) for seed in (1, 2, 3) for number in (1, 2, 3)]
    assert len(set(orders)) == 9, "also (seed 1, epoch 2) and (seed 2, epoch 1), whose sums agree"
    assert sorted(orders[0]) != list(orders[0])


@pytest.mark.parametrize(("length", "replicas", "shares"), [(7, 3, [3, 2, 2]), (3, 2, [2, 1]), (2, 4, [1, 1, 0, 0])])
def test_validation_is_split_without_padding(length, replicas, shares):
    """Hazard 3: a sample validated twice counts twice; a replica may have none."""
    parts = [list(ValidationSampler(length, replica, replicas)) for replica in range(replicas)]
    assert (
        [len(part) for part in parts]
        == shares
        == [len(ValidationSampler(length, r, replicas)) for r in range(replicas)]
    )
    assert [sample for part in parts for sample in part] == list(range(length))


def test_last_batch_may_be_smaller_and_is_not_dropped():
    """Hazard 7: every sample counts once."""
    batches = loader(TinySamples(5), ValidationSampler(5, 0, 1), 2, 0, CPU)
    assert [len(batch["mask"]) for batch in batches] == [2, 2, 1]


class WhoReads(TinySamples):
    """Tells the process that reads, and its parent."""

    def __getitem__(self, index):
        return {"pid": os.getpid(), "parent": os.getppid()}


def test_loader_processes_are_not_forked_from_this_one():
    """A fork copies the locks of MPI, gloo and checkpoint threads, and hangs now and then."""
    (batch,) = loader(WhoReads(2), ValidationSampler(2, 0, 1), 2, 1, CPU)
    assert os.getpid() not in (*batch["pid"].tolist(), *batch["parent"].tolist())
