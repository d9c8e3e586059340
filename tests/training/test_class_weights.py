"""Class weights: which masks are read, by whom, and what is made of their counts."""

import logging

import numpy as np
import pytest
import torch
from tiny_learner import ThreadTeam, TinySamples

from scaffold.errors import DamagedFileError, ExitCode
from scaffold.parallel.team import RankError, Solo
from scaffold.training.class_weights import class_weights, estimate, histogram, subset


class MasksOnly(TinySamples):
    """Refuses to read an image."""

    def __getitem__(self, index):
        raise AssertionError("an image was read")


@pytest.mark.parametrize(
    ("length", "fraction", "indices"),
    [(10, 0.1, [0]), (10, 0.25, [0, 4, 9]), (4, 1.0, [0, 1, 2, 3]), (17, 0.1, [0, 16]), (3, 1e-9, [0])],
)
def test_subset_is_spread_over_the_samples(length, fraction, indices):
    """Another subset gives other weights, hence another benchmark."""
    assert subset(length, fraction) == indices


def test_weights_are_total_over_count():
    """Every foreground class gets the weight of all foreground together, as LLNL."""
    assert class_weights(np.array([90, 6, 4])).tolist() == pytest.approx([100 / 90, 10, 10])


@pytest.mark.parametrize("counts", [[0, 5, 5], [10, 0, 0], [0, 0, 0]])
def test_nothing_to_weigh_falls_back_to_ones_and_says_so(counts, caplog):
    """A division by zero would train on NaN."""
    with caplog.at_level(logging.WARNING):
        assert class_weights(np.array(counts)).tolist() == [1, 1, 1]
    assert "class weights are all 1" in caplog.text


def test_only_masks_are_read():
    """Hazard 47: reading images for a count of labels costs 6 times the I/O."""
    weights = estimate(MasksOnly(9), 1.0, Solo())
    counts = sum(np.bincount(TinySamples(9).mask(i).ravel(), minlength=3) for i in range(9))
    assert torch.equal(weights, class_weights(counts))
    assert weights[1] == weights[2] > 5 > weights[0]


def test_weights_do_not_depend_on_the_number_of_ranks():
    """Weights that differ between ranks or rank counts make runs incomparable. Control: a rank alone differs."""
    alone = estimate(TinySamples(9), 0.5, Solo())
    shared = ThreadTeam.run(3, lambda team: estimate(TinySamples(9), 0.5, team, team.rank, team.size))
    assert all(torch.equal(weights, alone) for weights in shared)
    assert not torch.equal(class_weights(histogram(TinySamples(9), [0])), alone)


def test_ranks_with_no_sample_to_read_take_part():
    """Hazard 18: a rank that skips the collective leaves the others waiting."""
    shared = ThreadTeam.run(4, lambda team: estimate(TinySamples(2), 1.0, team, team.rank, team.size))
    assert all(torch.equal(weights, estimate(TinySamples(2), 1.0, Solo())) for weights in shared)


def test_a_damaged_mask_fails_on_all_ranks():
    """Hazard 33: the rank that reads it must not raise alone."""

    class Damaged(TinySamples):
        def mask(self, index):
            if index == 1:
                raise DamagedFileError("masks.npy", "is truncated", "snakemake")
            return super().mask(index)

    outcomes = ThreadTeam.run(2, lambda team: estimate(Damaged(4), 1.0, team, team.rank, team.size))
    for error in outcomes:
        assert isinstance(error, RankError)
        assert error.exit_code == ExitCode.DAMAGED
        assert "rank 1 of 2" in str(error)
        assert "masks.npy" in str(error)
