"""Step times."""

import time

import pytest
import torch

from scaffold.parallel.team import Solo
from scaffold.training.timing import StepTimer, median_of_slowest


def test_the_slowest_rank_counts_in_each_batch():
    """The mean over ranks would hide a straggler that everyone waits for."""
    assert median_of_slowest([[1.0, 5.0, 1.0], [2.0, 1.0, 3.0]]) == 3.0
    with pytest.raises(ValueError):
        median_of_slowest([[1.0], [1.0, 2.0]])


def test_no_full_batch_has_no_time():
    """Hazard 19: a median of nothing raises."""
    assert median_of_slowest([[], []]) is None
    assert StepTimer(torch.device("cpu")).median(Solo()) is None


def test_only_full_batches_are_timed_and_cpu_needs_no_events():
    """Hazard 20: CUDA events fail without CUDA; a ragged batch is faster and lowers the median."""
    timer = StepTimer(torch.device("cpu"))
    for is_full in (True, False, True):
        with timer.step(is_full):
            time.sleep(0.01)
    assert len(timer.seconds()) == 2
    assert min(timer.seconds()) >= 0.01
