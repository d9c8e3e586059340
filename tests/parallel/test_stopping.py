"""Requests to stop, on one rank; how ranks share them is tested in tests/multirank."""

import os
import signal
import time

import pytest

from scaffold.errors import Ending
from scaffold.parallel.launch import Context
from scaffold.parallel.stopping import SIGNALS, Request, StopRequests


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_read_two_steps_later_and_at_once_when_settling(number):
    """Read earlier, the flag would make training wait for the slowest rank; later, the grace period may end."""
    stops = StopRequests(Context())
    with stops.listening():
        os.kill(os.getpid(), number)
        assert [stops.poll() for _ in range(3)] == [None, None, Request(Ending.SIGNAL, number.name)]
    fresh = StopRequests(Context())
    with fresh.listening():
        os.kill(os.getpid(), number)
        assert fresh.settle() == Request(Ending.SIGNAL, number.name)


def test_handlers_are_put_back():
    """A process that trained once must still be stoppable afterwards."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequests(Context()).listening():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_second_ctrl_c_interrupts():
    """A person who means it must not have to wait for the step to end."""
    stops = StopRequests(Context())
    with stops.listening():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_nothing_asked_is_nothing_read():
    """Control of the tests above."""
    stops = StopRequests(Context(), deadline=time.monotonic() + 1000)
    assert [stops.poll() for _ in range(4)] == [None] * 4
    assert stops.settle(needed_s=10) is None


def test_the_time_limit_stops_in_time_and_ahead_of_time():
    """An epoch that cannot end before the limit would be lost; so it is not begun."""
    assert StopRequests(Context(), deadline=time.monotonic() - 1).settle() == Request(Ending.TIME_LIMIT, "time limit")
    stops = StopRequests(Context(), deadline=time.monotonic() + 100)
    assert stops.settle(needed_s=90) is None
    assert stops.settle(needed_s=110) == Request(Ending.TIME_LIMIT, "time limit")
