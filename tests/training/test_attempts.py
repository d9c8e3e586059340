"""The record of attempts: closed by whoever comes next, added up, and counted."""

import json
import os
import time

import pytest
from work_folders import dead_pid, ended, opened

from scaffold.errors import ExitCode, IncurableError
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
