"""Timing in turns, with tasks that note their order."""

from scaffold.interleave import interleave, on_host


def test_tasks_alternate():
    """A clock that drifts would favour the task that runs first."""
    calls = []
    interleave([lambda: calls.append("a"), lambda: calls.append("b")], 3)
    assert "".join(calls) == "abbaab"


def test_times_are_those_of_their_tasks():
    """The order of a round would decide whose time is whose."""
    turns = iter(range(6))

    def stopwatch(task):
        seconds = task() + next(turns)
        return lambda: seconds

    assert interleave([lambda: 10, lambda: 20], 3, stopwatch) == [[10, 13, 14], [21, 22, 25]]


def test_no_time_is_asked_for_while_tasks_are_to_be_started():
    """The host would wait for the device after each task, and the next one's launch be timed with it."""
    events = []

    def stopwatch(task):
        events.append("start")
        return lambda: events.append("read") or 0.0

    assert interleave([print, print], 2, stopwatch) == [[0.0, 0.0], [0.0, 0.0]]
    assert events == ["start"] * 4 + ["read"] * 4


def test_host_is_timed_while_the_task_runs(monkeypatch):
    """The time would grow until it is asked for."""
    now = [5.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    seconds = on_host(lambda: now.append(now.pop() + 2.0))
    now[0] += 4.0
    assert seconds() == 2.0
