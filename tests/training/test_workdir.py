"""The work folder: its lock, its record of attempts, failures and seals."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from scaffold.errors import DamagedFileError, ExitCode, IncurableError, UserError
from scaffold.training import workdir
from scaffold.training.workdir import Attempts, Lock, WorkDir


@pytest.fixture
def quick(monkeypatch):
    """Let hearts beat, and locks grow stale, in fractions of a second."""
    monkeypatch.setattr(workdir, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(workdir, "STALE_AFTER_S", 0.4)


def locked_by(folder, silent_s=0.0, **owner):
    """Leave the lock of another process, last heard of ``silent_s`` seconds ago."""
    lock = Lock(folder)
    content = lock._content() | {"token": "another"} | owner
    draft = folder / "draft"
    draft.write_text(json.dumps(content))
    then = time.time() - silent_s
    os.utime(draft, (then, then))
    draft.replace(lock.path)


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def opened(folder, identity="abc"):
    return WorkDir(folder, identity)


def ended(folder, reason="converged", code=ExitCode.DONE, epochs=(1, 2)):
    """Let one attempt run from and to ``epochs``, and end."""
    work = opened(folder)
    work.attempts.resume_from(epochs[0] - 1)
    work.attempts.reached(epochs[1])
    work.close(reason, code)


# The lock


def test_a_second_training_is_refused_and_told_by_whom(tmp_path):
    """Hazard 54: two writers of one folder mix their checkpoints."""
    first = Lock(tmp_path)
    first.acquire()
    with pytest.raises(UserError, match=f"process {os.getpid()} on .*; wait for it or stop it"):
        Lock(tmp_path).acquire()
    first.release()
    second = Lock(tmp_path)
    second.acquire()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_process_of_this_host_loses_its_lock_at_once(tmp_path):
    """The rerun after kill -9 must not wait for a heartbeat to grow old."""
    locked_by(tmp_path, pid=dead_pid())
    lock = Lock(tmp_path)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start < 5
    assert lock.last_heartbeat == pytest.approx(time.time(), abs=5)
    lock.release()


def test_an_equal_pid_elsewhere_says_nothing(tmp_path, quick):
    """On another host, or in another container, the pid names another process, alive or dead."""
    for elsewhere in ({"host": "elsewhere"}, {"processes": "pid:[1]"}):
        locked_by(tmp_path, silent_s=100, pid=dead_pid(), **elsewhere)
        beating = threading.Event()

        def beat(beating=beating):
            while not beating.wait(0.05):
                os.utime(tmp_path / workdir.LOCK)

        os.utime(tmp_path / workdir.LOCK)
        heart = threading.Thread(target=beat)
        heart.start()
        try:
            with pytest.raises(UserError, match="another training"):
                Lock(tmp_path).acquire()
        finally:
            beating.set()
            heart.join()


def test_a_silent_owner_elsewhere_is_waited_for_then_replaced(tmp_path, quick):
    """After a node's death the retry starts sooner than a heartbeat grows stale; refusing would waste it."""
    locked_by(tmp_path, host="elsewhere")
    lock = Lock(tmp_path)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start > 0.3
    lock.release()


def test_of_many_that_take_over_a_dead_lock_one_wins(tmp_path):
    """Each that removes the stale lock by name could remove the winner's."""
    locked_by(tmp_path, pid=dead_pid())
    start, locks, refused = threading.Barrier(8), [], []

    def take():
        lock = Lock(tmp_path)
        start.wait()
        try:
            lock.acquire()
            locks.append(lock)
        except UserError:
            refused.append(lock)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(locks), len(refused)) == (1, 7)
    locks[0].check()
    locks[0].release()


def test_who_comes_late_to_a_takeover_leaves_the_winners_lock(tmp_path):
    """The same, forced: between judging the old lock dead and removing it, another took it over."""
    locked_by(tmp_path, pid=dead_pid())
    late = Lock(tmp_path)
    judged = late._held_by()
    winner = Lock(tmp_path)
    winner.acquire()
    late._take_over(judged)
    winner.check()
    winner.release()


def test_the_heart_beats_and_notices_a_takeover(tmp_path, quick):
    """A suspended process that wakes must not write over its successor's checkpoints."""
    lock = Lock(tmp_path)
    lock.acquire()
    born = lock.path.stat().st_mtime
    time.sleep(0.3)
    assert lock.path.stat().st_mtime > born
    lock.check()
    locked_by(tmp_path)
    with pytest.raises(UserError, match="took over"):
        lock.check()
    lock.release()
    assert json.loads(lock.path.read_text())["token"] == "another"


# Attempts


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
    assert (killed.reason, killed.exit_code, killed.last_epoch) == ("killed", None, 3)
    assert killed.wall_s == pytest.approx(7, abs=2)
    second.close("converged", ExitCode.DONE)
    assert [entry["reason"] for entry in json.loads((tmp_path / "attempts.json").read_text())] == [
        "killed",
        "converged",
    ]


def test_lost_time_is_what_earlier_attempts_took_less_what_counts(tmp_path):
    """Counted twice, or not at all, the cost of failures looks wrong."""
    for epochs, wall in (((1, 4), 50.0), ((3, 5), 40.0)):
        ended(tmp_path, "stopped: SIGTERM", ExitCode.RUN_AGAIN, epochs)
        attempts = Attempts(tmp_path)
        attempts.current.wall_s = wall
        attempts.write()
    work = opened(tmp_path)
    work.attempts.resume_from(5)
    # Epochs 3 and 4 of the first attempt were done again by the second, which kept 3, 4 and 5.
    assert work.attempts.lost_s(dict.fromkeys(range(1, 8), 10.0)) == (50 - 20) + (40 - 30)
    work.close("converged", ExitCode.DONE)


def test_three_attempts_without_progress_stop_for_good(tmp_path):
    """A job that dies in the same place each time must not be resubmitted for ever."""
    for _ in range(3):
        ended(tmp_path, "out of memory", ExitCode.INTERNAL, epochs=(2, 1))
    work = opened(tmp_path)
    work.attempts.resume_from(1)
    with pytest.raises(IncurableError, match=r"3 attempts in a row made no progress \(out of memory; "):
        work.check_progress()
    work.close("no progress", ExitCode.INCURABLE)
    with pytest.raises(IncurableError, match="clean-run --keep-checkpoints"):
        opened(tmp_path)

    workdir.clean(tmp_path, keep_checkpoints=True)
    work = opened(tmp_path)
    work.attempts.resume_from(1)
    work.check_progress()
    work.close("converged", ExitCode.DONE)


@pytest.mark.parametrize(
    ("reason", "code", "epochs"),
    [
        ("out of memory", ExitCode.INTERNAL, (2, 2)),
        ("stopped: SIGINT, after epoch 1", ExitCode.RUN_AGAIN, (2, 1)),
        ("published", ExitCode.DONE, (2, 1)),
    ],
)
def test_progress_a_person_or_success_interrupt_the_count(tmp_path, reason, code, epochs):
    """Control of the test before: Ctrl-C three times, or publishing again, is no failure."""
    for _ in range(2):
        ended(tmp_path, "out of memory", ExitCode.INTERNAL, epochs=(2, 1))
    ended(tmp_path, reason, code, epochs)
    work = opened(tmp_path)
    work.attempts.resume_from(epochs[1])
    work.check_progress()
    work.close("converged", ExitCode.DONE)


@pytest.mark.parametrize("code", [ExitCode.INCURABLE, ExitCode.DAMAGED])
def test_a_failure_that_no_retry_cures_is_kept(tmp_path, code):
    """Hazard 16: retried, a diverged run diverges again, at the price of its allocation."""
    ended(tmp_path, "loss is not finite", code)
    with pytest.raises(IncurableError, match="loss is not finite"):
        opened(tmp_path)
    assert not (tmp_path / workdir.LOCK).exists()
    assert len(Attempts(tmp_path).all) == 1


@pytest.mark.parametrize("code", [ExitCode.RUN_AGAIN, ExitCode.IO_ERROR, ExitCode.INTERNAL])
def test_other_failures_may_be_retried(tmp_path, code):
    """Control of the test before."""
    ended(tmp_path, "stopped", code)
    opened(tmp_path).close("converged", ExitCode.DONE)


def test_an_unreadable_record_is_named(tmp_path):
    """A record that is silently begun anew would forget the failures."""
    (tmp_path / workdir.ATTEMPTS).write_text("[{")
    with pytest.raises(DamagedFileError, match=r"attempts.json is unreadable"):
        opened(tmp_path)
    assert not (tmp_path / workdir.LOCK).exists()


# Seals and cleaning


def finished(output, identity="abc"):
    """Return the work folder of a run with a published result."""
    work = workdir.work_path(output, "resume")
    ended(work)
    (work / "checkpoints").mkdir()
    (work / "checkpoints" / "last.safetensors").touch()
    (output / "result.json").write_text(json.dumps({"training_identity": identity, "resume_identity": "resume"}))
    return work


def test_a_sealed_run_starts_afresh(tmp_path):
    """A forced rerun that only published the old result again would measure nothing."""
    work = finished(tmp_path)
    workdir.seal(tmp_path)
    fresh = opened(work, "abc")
    assert not (work / "checkpoints").exists()
    assert len(fresh.attempts.all) == 1
    fresh.close("converged", ExitCode.DONE)
    assert not (work / workdir.SEALED).exists()


def test_a_sealed_run_with_a_raised_target_continues(tmp_path):
    """Otherwise raising target_dice would throw the training away."""
    work = finished(tmp_path)
    workdir.seal(tmp_path)
    again = opened(work, "other")
    assert (work / "checkpoints" / "last.safetensors").exists()
    assert len(again.attempts.all) == 2
    again.close("converged", ExitCode.DONE)


def test_an_unsealed_run_keeps_its_work(tmp_path):
    """Killed between the result and its recording, the same command must publish again, not train again."""
    work = finished(tmp_path)
    opened(work, "abc").close("published", ExitCode.DONE)
    assert (work / "checkpoints" / "last.safetensors").exists()


def test_sealing_needs_a_result(tmp_path):
    """Sealing runs in the workflow's handlers, where an exception would hide the real error."""
    workdir.seal(tmp_path)
    work = finished(tmp_path)
    (tmp_path / "result.json").write_text("{")
    workdir.seal(tmp_path)
    assert not (work / workdir.SEALED).exists()


def test_the_workflow_can_seal_without_torch():
    """Snakemake's own process seals; torch there would cost seconds and a gigabyte at every start."""
    code = "import sys, scaffold.training.workdir; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_clean_run_removes_work_and_nothing_else(tmp_path):
    """Results that are already published stay."""
    work = finished(tmp_path)
    assert workdir.clean(tmp_path) == [work]
    assert not work.exists()
    assert (tmp_path / "result.json").exists()
    with pytest.raises(UserError, match="has no work folder"):
        workdir.clean(tmp_path)


def test_clean_run_refuses_while_training_runs(tmp_path):
    """Checkpoints pulled away under a running job."""
    work = workdir.work_path(tmp_path, "resume")
    running = opened(work)
    with pytest.raises(UserError, match="another training is running"):
        workdir.clean(tmp_path)
    running.close("converged", ExitCode.DONE)
    assert workdir.clean(work) == [work]
