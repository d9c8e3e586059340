"""Timing in turns, with tasks that note their order."""

import time

import pytest

from scaffold.interleave import interleave


def test_tasks_alternate():
    """A clock that drifts would favour the task that runs first."""
    calls = []
    interleave([lambda: calls.append("a"), lambda: calls.append("b")], 3)
    assert "".join(calls) == "abbaab"


def test_times_are_those_of_their_tasks():
    """The order of a round would decide whose time is whose."""
    slow, fast = interleave([lambda: time.sleep(0.02), lambda: None], 3)
    assert slow == pytest.approx([0.02] * 3, abs=0.015)
    assert max(fast) < 0.005


def test_no_time_is_asked_for_while_tasks_are_to_be_started():
    """The host would wait for the device after each task, and the next one's launch be timed with it."""
    events = []

    def stopwatch(task):
        events.append("start")
        return lambda: events.append("read") or 0.0

    assert interleave([print, print], 2, stopwatch) == [[0.0, 0.0], [0.0, 0.0]]
    assert events == ["start"] * 4 + ["read"] * 4
