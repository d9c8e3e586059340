"""Timing, on a clock that functions move."""

import torch

from scaffold.kernels.bench import timing
from scaffold.kernels.bench.timing import interval, time_in_rounds

CPU = torch.device("cpu")


def test_slow_arms_are_timed_in_fewer_rounds(sleeper):
    """The largest sites would take the device for minutes; or too few rounds would be left for an interval."""
    assert [len(times) for times in time_in_rounds([sleeper(2)], CPU, 40, span_s=0.0205)] == [10]
    assert [len(times) for times in time_in_rounds([sleeper(2)], CPU, 40, span_s=0)] == [timing.LEAST_ROUNDS]
    assert [len(times) for times in time_in_rounds([sleeper(2)], CPU, 3, span_s=0)] == [3]
    assert [len(times) for times in time_in_rounds([sleeper(2)], CPU, 40)] == [40]


def test_interval_of_the_median():
    """The interval would be that of a single value, or miss the median."""
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    low, middle, high = interval([float(i) for i in range(100)])
    assert (low, middle, high) == (40.0, 49.5, 59.0)
