"""The record of attempts: closed by whoever comes next, added up, and counted."""

import json
import os
import time

import pytest
from work_folders import dead_pid, ended, opened

from scaffold.errors import Ending, ExitCode, IncurableError
from scaffold.training import workdir
from scaffold.training.attempts import Attempts


def test_a_killed_attempt_is_closed_by_the_next(tmp_path):
    """An attempt without an end would count neither as lost time nor as lack of progress."""
    first = opened(tmp_path)
    first.attempts.resume_from(0)
    first.lock._released.set()  # its heart stops, as by kill -9
    content = json.loads(first.lock.path.read_text()) | {"pid": dead_pid()}
    first.lock.path.write_text(json.dumps(content))
    later = time.time() + 7
    os.utime(first.lock.path, (later, later))

    second = opened(tmp_path)
    second.attempts.resume_from(3)
    killed = second.attempts.all[0]
    assert (killed.ending, killed.exit_code, killed.last_epoch) == (Ending.KILLED, None, 3)
    assert killed.wall_s == pytest.approx(7, abs=2)
    second.close(Ending.CONVERGED, "converged", ExitCode.DONE)
    assert [entry["reason"] for entry in json.loads((tmp_path / "attempts.json").read_text())] == [
        "killed",
        "converged",
    ]


def test_an_attempt_is_credited_with_the_checkpoint_that_it_left(tmp_path):
    """A rank was lost while epoch 3 was being saved: counted as lost too, that epoch would count twice."""
    ended(tmp_path, Ending.LOST_RANK, ExitCode.RUN_AGAIN, (1, 2))
    work = opened(tmp_path)
    work.attempts.resume_from(3)
    first = work.attempts.all[0]
    assert (first.first_epoch, first.last_epoch) == (1, 3)
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)


def test_lost_time_is_what_earlier_attempts_took_less_what_counts(tmp_path):
    """Counted twice, or not at all, the cost of failures looks wrong."""
    for epochs, wall in (((1, 4), 50.0), ((3, 5), 40.0)):
        ended(tmp_path, Ending.SIGNAL, ExitCode.RUN_AGAIN, epochs)
        attempts = Attempts(tmp_path)
        attempts.current.wall_s = wall
        attempts.write()
    work = opened(tmp_path)
    work.attempts.resume_from(5)
    # Epochs 3 and 4 of the first attempt were done again by the second, which kept 3, 4 and 5.
    assert work.attempts.lost_s(dict.fromkeys(range(1, 8), 10.0)) == (50 - 20) + (40 - 30)
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)


def killed(folder, seconds_ago=0.0):
    """Leave the folder of an attempt that was killed, last heard of some time ago."""
    work = opened(folder)
    work.lock._released.set()
    content = json.loads(work.lock.path.read_text()) | {"pid": dead_pid()}
    work.lock.path.write_text(json.dumps(content))
    then = time.time() - seconds_ago
    for path in folder.iterdir():
        os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("job", "restarts", "end_in_s", "reason"),
    [
        ("7", "", "", "killed"),
        ("7", "1", "", "killed; its job was requeued"),
        ("8", "1", "", "killed"),
        ("7", "", "5", "killed at its job's time limit"),
        ("7", "", "300", "killed"),
        ("7", "1", "5", "killed at its job's time limit; its job was requeued"),
    ],
)
def test_why_an_attempt_was_killed_is_told_where_the_scheduler_says(
    tmp_path, monkeypatch, job, restarts, end_in_s, reason
):
    """A time limit that is too short looks like a node that dies, and only one of them can be mended by the user."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setenv("SLURM_JOB_END_TIME", end_in_s and str(int(time.time() + int(end_in_s))))
    killed(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    work = opened(tmp_path)
    assert work.attempts.all[0].reason == reason
    assert work.attempts.all[0].ending is Ending.KILLED
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)


def test_a_preempted_attempt_says_that_it_was_requeued(tmp_path, monkeypatch):
    """Its own words were written before the scheduler decided; one that crashed crashed, requeued or not."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    ended(tmp_path, Ending.SIGNAL, ExitCode.RUN_AGAIN, reason="stopped: SIGTERM")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    ended(tmp_path, Ending.FAILED, ExitCode.INTERNAL, reason="crashed")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    ended(tmp_path)
    reasons = [attempt.reason for attempt in Attempts(tmp_path).all]
    assert reasons == ["stopped: SIGTERM; its job was requeued", "crashed", "of old age"]


CRASH = (Ending.FAILED, ExitCode.INTERNAL)
OUTSIDE = [
    (Ending.KILLED, None),
    (Ending.SIGNAL, ExitCode.RUN_AGAIN),
    (Ending.LOST_RANK, ExitCode.RUN_AGAIN),
    (Ending.FAILED, ExitCode.USER_ERROR),
    (Ending.FAILED, ExitCode.DAMAGED),
    (Ending.FAILED, ExitCode.IO_ERROR),
]


def began_again(folder, *endings, epochs=(2, 1)):
    """Let attempts end, one after the other; return the work folder as the next attempt opens it."""
    for ending, code in endings:
        ended(folder, ending, code or ExitCode.INTERNAL, epochs, reason=f"it {ending}")
        if code is None:
            attempts = Attempts(folder)
            attempts.current.end = attempts.current.exit_code = None
            attempts.write()
    work = opened(folder)
    work.attempts.resume_from(epochs[1])
    return work


@pytest.mark.parametrize("itself", [CRASH, (Ending.TIME_LIMIT, ExitCode.RUN_AGAIN)])
def test_three_ends_of_its_own_without_progress_stop_for_good(tmp_path, itself):
    """A job that dies in the same place each time must not be resubmitted for ever."""
    work = began_again(tmp_path, itself, itself, itself)
    with pytest.raises(IncurableError, match=rf"3 attempts ended without .* \(it {itself[0]}; it {itself[0]}; it "):
        work.check_progress()
    work.close(Ending.FAILED, "no progress", ExitCode.INCURABLE)
    with pytest.raises(IncurableError, match="clean-run --keep-checkpoints"):
        opened(tmp_path)

    workdir.clean(tmp_path, keep_checkpoints=True)
    work = began_again(tmp_path)
    work.check_progress()
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)


@pytest.mark.parametrize("outside", OUTSIDE)
def test_what_ends_attempts_from_outside_never_stops_for_good(tmp_path, outside):
    """Kill -9 at any time, as often as it pleases: the same command continues."""
    work = began_again(tmp_path, *[outside] * 5)
    assert [attempt.ending for attempt in work.attempts.all[:-1]] == [outside[0]] * 5
    work.check_progress()
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)


def test_ends_from_outside_do_not_excuse_those_of_its_own(tmp_path):
    """A crash at each start stays one, though the machine was also shut down in between."""
    work = began_again(tmp_path, CRASH, *OUTSIDE, CRASH, *OUTSIDE, CRASH)
    with pytest.raises(IncurableError, match="3 attempts"):
        work.check_progress()
    work.close(Ending.FAILED, "no progress", ExitCode.INCURABLE)


@pytest.mark.parametrize(("between", "epochs"), [(CRASH, (2, 2)), ((Ending.PUBLISHED, ExitCode.DONE), (2, 1))])
def test_progress_and_success_begin_the_count_anew(tmp_path, between, epochs):
    """Three crashes in three weeks of training are no sign that it cannot go on."""
    began_again(tmp_path, CRASH, CRASH).close(Ending.SIGNAL, "SIGINT", ExitCode.RUN_AGAIN)
    ended(tmp_path, *between, epochs)
    work = began_again(tmp_path, CRASH, CRASH, epochs=(epochs[1] + 1, epochs[1]))
    work.check_progress()
    work.close(Ending.CONVERGED, "converged", ExitCode.DONE)
