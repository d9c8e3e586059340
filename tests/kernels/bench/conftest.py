"""Functions whose speed is known, on a clock that nothing else moves."""

import time

import pytest
import torch


@pytest.fixture
def sleeper(monkeypatch):
    """Return a maker of functions that let the clock run on by some milliseconds.

    With ``drift``, each call of any of them takes longer than the one before it, by that fraction of its time.
    """
    now, calls = 0.0, 0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def make(milliseconds, drift=0.0):
        def run():
            nonlocal now, calls
            now += milliseconds / 1e3 * (1 + drift * calls)
            calls += 1
            return torch.ones(3)

        return run

    return make
