"""Requests to stop, on one rank; how ranks share them is tested in tests/multirank."""

import os
import signal
import time

import pytest

from scaffold.errors import Ending
from scaffold.parallel import environment
from scaffold.parallel.launch import Context
from scaffold.parallel.stopping import SIGNALS, Request, StopRequests


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    for name in (*environment._JOB_IDS, "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)


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


@pytest.mark.parametrize(
    ("number", "left_s", "request_"),
    [
        (signal.SIGTERM, 5, Request(Ending.TIME_LIMIT, "time limit of the job")),
        (signal.SIGTERM, 1000, Request(Ending.SIGNAL, "SIGTERM (the job was cancelled or preempted)")),
        (
            signal.SIGTERM,
            None,
            Request(Ending.SIGNAL, "SIGTERM (the job was cancelled, preempted, or at its time limit)"),
        ),
        (signal.SIGUSR1, 120, Request(Ending.TIME_LIMIT, "time limit of the job")),
        (signal.SIGUSR1, None, Request(Ending.SIGNAL, "SIGUSR1")),
        (signal.SIGINT, -5, Request(Ending.SIGNAL, "SIGINT")),
    ],
)
def test_what_a_scheduler_means_by_a_signal_is_told_where_it_can_be_known(monkeypatch, number, left_s, request_):
    """Three time limits without an epoch stop for good; three preemptions must not, and the record says which."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "" if left_s is None else str(int(time.time() + left_s)))
    stops = StopRequests(Context())
    with stops.listening():
        os.kill(os.getpid(), number)
        assert stops.settle() == request_


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


def test_a_signal_stays_the_reason_when_the_time_is_nearly_up_too():
    """Three time limits without an epoch stop for good; a cancelled job must not count as one of them."""
    stops = StopRequests(Context(), deadline=time.monotonic() + 100)
    with stops.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops.settle(needed_s=110) == Request(Ending.SIGNAL, "SIGTERM")
