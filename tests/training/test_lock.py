"""The lock of a work folder: one holder, and a dead one is replaced."""

import contextlib
import json
import os
import threading
import time

import pytest
from work_folders import dead_pid

from scaffold.errors import UserError
from scaffold.training import lock as lock_file
from scaffold.training.lock import Lock


@pytest.fixture
def quick(monkeypatch):
    """Let hearts beat, and locks grow stale, in fractions of a second."""
    monkeypatch.setattr(lock_file, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(lock_file, "STALE_AFTER_S", 0.4)


def locked_by(folder, silent_s=0.0, **owner):
    """Leave the lock of another process, last heard of ``silent_s`` seconds ago."""
    lock = Lock(folder)
    content = lock._content() | {"token": "another"} | owner
    draft = folder / "draft"
    draft.write_text(json.dumps(content))
    then = time.time() - silent_s
    os.utime(draft, (then, then))
    draft.replace(lock.path)


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


@pytest.mark.parametrize("job", [None, "SLURM_JOB_ID=7"])
def test_the_lock_of_an_earlier_version_is_judged_by_its_owner(tmp_path, monkeypatch, job):
    """A training that an update found killed could not be resumed, or one that lives would get a second writer."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for pid, refused in ((os.getpid(), True), (dead_pid(), False)):
        locked_by(tmp_path, pid=pid, job=job)
        lock = Lock(tmp_path)
        content = json.loads(lock.path.read_text())
        del content["restarts"]
        lock.path.write_text(json.dumps(content))
        with pytest.raises(UserError, match="another training") if refused else contextlib.nullcontext():
            lock.acquire()
    lock.release()


def test_an_equal_pid_elsewhere_says_nothing(tmp_path, quick):
    """On another host, or in another container, the pid names another process, alive or dead."""
    for elsewhere in ({"host": "elsewhere"}, {"processes": "pid:[1]"}):
        locked_by(tmp_path, silent_s=100, pid=dead_pid(), **elsewhere)
        beating = threading.Event()

        def beat(beating=beating):
            while not beating.wait(0.05):
                os.utime(tmp_path / lock_file.LOCK)

        os.utime(tmp_path / lock_file.LOCK)
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


def test_a_requeued_job_does_not_wait_for_its_own_ghost(tmp_path, monkeypatch):
    """The same job on another node: its scheduler ended it before it started it again."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    locked_by(tmp_path, host="elsewhere")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    lock = Lock(tmp_path)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start < 5
    assert json.loads(lock.path.read_text())["job"] == "SLURM_JOB_ID=7"
    lock.release()


@pytest.mark.parametrize("changed", [{"job": "SLURM_JOB_ID=8"}, {"restarts": 1}, {"job": None}])
def test_another_job_and_another_step_of_this_one_are_no_ghosts(tmp_path, quick, monkeypatch, changed):
    """Control: a second step of the same start may well be a training that lives."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    locked_by(tmp_path, host="elsewhere", **({"job": "SLURM_JOB_ID=7", "restarts": 0} | changed))
    held = Lock(tmp_path)._held_by()
    assert not lock_file._is_dead(held)


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
