"""One attempt at a job: its log, its exit code, and its end with its Snakemake."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaffold.attempt import exit_code

SLEEP = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]


def attempt(log: Path, *command: str) -> list[str]:
    return [sys.executable, "-m", "scaffold.attempt", "--log", str(log), "--", *command]


def wait_for_line(path: Path) -> str:
    for _ in range(200):
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text().strip()
        time.sleep(0.05)
    raise AssertionError(f"nothing was written to {path}")


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_each_attempt_keeps_its_log(tmp_path: Path) -> None:
    """Snakemake deletes the declared log before a retry; why the first attempt failed must stay readable."""
    log = tmp_path / "logs" / "job.log"
    subprocess.run(attempt(log, "sh", "-c", "echo out; echo error >&2; exit 1"), check=False)
    log.unlink()
    subprocess.run(attempt(log, "echo", "second"), check=True)

    assert log.read_text() == "second\n"
    assert Path(f"{log}.1").read_text() == "out\nerror\nthis attempt ended with exit code 1\n"
    assert Path(f"{log}.2").read_text() == "second\n"


def test_output_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    """A user watches the epochs of a training: nothing may wait for the end of the job."""
    with subprocess.Popen(attempt(tmp_path / "log", *SLEEP), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        assert process.poll() is None
        process.terminate()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 75", 75), ("exit 2", 2), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_exit_code_is_the_commands(tmp_path: Path, script: str, code: int) -> None:
    """Exit codes are documented (75: run me again); a wrapper that swallows them misleads every script."""
    log = tmp_path / "log"
    assert subprocess.run(attempt(log, "sh", "-c", script), check=False).returncode == code
    assert exit_code(log) == (code or None)


@pytest.mark.parametrize(
    "text",
    [None, "", "epoch 1\n", "this attempt ended with exit code 70\nepoch 1\n", "this attempt ended with exit code 7"],
)
def test_exit_code_is_not_made_up(tmp_path: Path, text: str | None) -> None:
    """A killed attempt must be retried: its log has no end, or only one that another program printed."""
    log = tmp_path / "log"
    if text is not None:
        log.write_text(text)
    assert exit_code(log) is None


def test_missing_program_is_said(tmp_path: Path) -> None:
    """A launcher that is not installed must be named in the log, without a traceback."""
    done = subprocess.run(attempt(tmp_path / "log", "no-such-launcher", "-n", "2"), check=False, capture_output=True)
    assert done.returncode == 127
    assert (tmp_path / "log").read_text() == "cannot start no-such-launcher: No such file or directory\n"
    assert b"Traceback" not in done.stderr


def test_stop_signal_reaches_the_command(tmp_path: Path) -> None:
    """A training saves and exits with 75 when it is told to stop: it must be told."""
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75));"
        "print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(attempt(tmp_path / "log", sys.executable, "-c", script)) as process:
        wait_for_line(tmp_path / "log")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 75


def test_stop_signal_amid_the_start_reaches_the_command(tmp_path: Path) -> None:
    """A signal that ends the attempt alone leaves a training behind that nobody can stop or wait for."""
    child = "import time; print('ready', flush=True); time.sleep(60)"
    # The signal comes when the child is there and Popen has not returned yet.
    script = (
        "import os, signal, subprocess, sys; from pathlib import Path; from scaffold.attempt import run\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "subprocess.Popen = Popen\n"
        "raise SystemExit(run(sys.argv[2:], Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log"), sys.executable, "-c", child]
    assert subprocess.run(command, check=False, timeout=20).returncode == 128 + signal.SIGTERM


def test_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """A training started under nohup must survive the end of its terminal."""
    script = "import signal; raise SystemExit(signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)"
    done = subprocess.run(
        attempt(tmp_path / "log", sys.executable, "-c", script),
        check=False, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0


@pytest.mark.faults
def test_full_disk_does_not_hold_the_command_up(tmp_path: Path) -> None:
    """A log that cannot be written must not leave the command waiting for a reader."""
    log, lines = tmp_path / "log", "line\n" * 100_000
    done = subprocess.run(
        attempt(log, sys.executable, "-c", "print('line\\n' * 100_000, end=''); raise SystemExit(75)"),
        capture_output=True, text=True, check=False, timeout=30,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    assert log.stat().st_size <= 1000
    assert done.stdout == f"{lines}this attempt ended with exit code 75\n"
    assert done.returncode == 75
    assert "Traceback" not in done.stderr


@pytest.mark.faults
def test_lost_console_does_not_change_the_outcome(tmp_path: Path) -> None:
    """Someone who pipes Snakemake through `head` must not turn a finished job into a failed one."""
    log = tmp_path / "log"
    with subprocess.Popen(
        attempt(log, sys.executable, "-c", "import time; print('a', flush=True); time.sleep(0.5); print('b')"),
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(10) == 0
    assert log.read_text() == "a\nb\n"


@pytest.mark.faults
def test_command_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """After kill -9 of Snakemake an orphaned training would hold its lock against the same command run again."""
    log = tmp_path / "log"
    # The second command keeps the shell from replacing itself by the attempt.
    with subprocess.Popen(["bash", "-c", '"$@"; true', "bash", *attempt(log, *SLEEP)]) as parent:
        pid = int(wait_for_line(log))
        assert is_running(pid)
        parent.kill()
    for _ in range(100):
        if not is_running(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the command outlived the parent of its attempt")


def test_command_ends_with_a_wrapper_killed_outright(tmp_path: Path) -> None:
    """A training orphaned by kill -9 would hold its folder's lock against the same command run again."""
    log = tmp_path / "log"
    with subprocess.Popen(attempt(log, *SLEEP), stdout=subprocess.DEVNULL) as process:
        child = int(wait_for_line(log))
        assert is_running(child)
        process.kill()
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.05)
    pytest.fail("the command outlives its wrapper")
