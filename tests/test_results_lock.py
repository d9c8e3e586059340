"""One Snakemake at a time on a results folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scaffold.errors import UserError
from scaffold.results_lock import ResultsLock

HOLD = (
    "import sys, time; from pathlib import Path; from scaffold.results_lock import ResultsLock;"
    "lock = ResultsLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
)


def holder(results: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(results)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_holder_is_refused_and_told_who(tmp_path: Path) -> None:
    """Two runs on one folder would remove each other's half-made files."""
    with holder(tmp_path) as first:
        with pytest.raises(UserError, match=rf"{tmp_path} is in use .* pid {first.pid}\b"):
            ResultsLock(tmp_path).acquire()
        with pytest.raises(UserError, match=rf"pid {first.pid}\b"):
            ResultsLock(tmp_path).acquire()
        first.kill()


@pytest.mark.faults
def test_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    """After kill -9 the same command must run again without an --unlock."""
    with holder(tmp_path) as first:
        first.send_signal(signal.SIGKILL)
    lock = ResultsLock(tmp_path)
    lock.acquire()
    assert f"pid {os.getpid()}," in lock.path.read_text()
    assert len(lock.path.read_text().splitlines()) == 1


def test_jobs_do_not_inherit_the_lock(tmp_path: Path) -> None:
    """An orphaned job must not hold the folder against the run that takes its place."""
    lock = ResultsLock(tmp_path)
    lock.acquire()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as job:
        del lock
        try:
            ResultsLock(tmp_path).acquire()
        finally:
            job.kill()


def test_unwritable_folder_is_said(tmp_path: Path) -> None:
    """A results path that cannot be made is the user's to mend: no traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write in .*file/results"):
        ResultsLock(tmp_path / "file" / "results").acquire()
