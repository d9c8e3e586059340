"""``python -m scaffold.attempt --log FILE -- COMMAND...``: one attempt at a job of the workflow.

Runs the command and returns its exit code. Three things that Snakemake does not do:

* Keep the log of *each* attempt. Snakemake deletes a job's declared log before it tries again, so
  the output goes to ``FILE`` (this attempt, declared) and to ``FILE.1``, ``FILE.2``, ... (kept), and is
  passed on as it comes.
* End the command with its Snakemake. The jobs of a killed Snakemake go on as orphans, and would
  stand in the way of the same command run again. So start it with ``exec``: its parent must be
  Snakemake, not a shell that would outlive it.
* Say why it ended. Of a submitted job Snakemake learns that it failed, not how. The exit code becomes
  the log's last line, where :func:`exit_code` finds it.

Only the standard library is imported: it starts in milliseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import FrameType

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.2
_DRAIN_S = 5.0
_LAST_LINE = "this attempt ended with exit code "


def main() -> int:
    """Parse the command line and run the attempt."""
    parser = argparse.ArgumentParser(prog="python -m scaffold.attempt", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--log", required=True, type=Path, metavar="FILE", help="where the output of this attempt goes")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command given")
    return run(command, arguments.log)


def run(command: list[str], log: Path) -> int:
    """Run ``command`` with its output going to ``log``, the attempt's own log, and standard output.

    Args:
        command: program and arguments; its standard input is empty.
        log: file to (over)write.

    Returns:
        The command's exit code, as a shell gives it: 128 + n when signal n ended it, 127 when there
        is no such program.
    """
    parent = os.getppid()
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "wb", buffering=0) as latest,
        _next_attempt(log) as kept,
        open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as console,
    ):
        sinks = (latest, kept, console)
        signals = _Forwarded()
        try:
            # Its own process group, so that ending it reaches an MPI launcher's helpers too.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            message = f"cannot start {command[0]}: {error.strerror}\n".encode()
            _copy([message], *sinks)
            return 127 if isinstance(error, FileNotFoundError) else 126
        signals.to(child)
        assert child.stdout is not None  # noqa: S101 - a pipe was asked for
        copier = threading.Thread(target=_copy, args=(child.stdout, *sinks), daemon=True)
        copier.start()
        ended = _wait(child, parent)
        copier.join(_DRAIN_S)
        code = ended if ended >= 0 else 128 - ended
        if code:
            _copy([f"{_LAST_LINE}{code}\n".encode()], *sinks)
    return code


def exit_code(log: Path) -> int | None:
    """Return the exit code with which the attempt that wrote ``log`` failed; None if it was killed or did not fail."""
    try:
        found = re.search(rb"^%s(\d+)\n\Z" % _LAST_LINE.encode(), log.read_bytes(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, which a parent killed with -9 cannot do itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Forwarded:
    """The signals that this process gets, passed on to its child; from before there is one.

    A signal between the start of the child and the handling of signals would end this process and
    leave the child behind. What was ignored (as by ``nohup``) stays so, for the child too.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        for signum in _FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._forward)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Pass on to ``child`` what has come, and what will."""
        self._child = child
        self._deliver()

    def _forward(self, signum: int, _frame: FrameType | None) -> None:
        self._waiting.append(signum)
        self._deliver()

    def _deliver(self) -> None:
        while self._child is not None and self._waiting:
            self._child.send_signal(self._waiting.pop(0))


def _next_attempt(log: Path) -> FileIO:
    number = 1
    while True:
        try:
            return open(f"{log}.{number}", "xb", buffering=0)
        except FileExistsError:
            number += 1


def _copy(lines: Iterable[bytes], *sinks: FileIO) -> None:
    """Write each line to each of the (unbuffered) ``sinks`` that takes it.

    A full disk, or the console of a killed Snakemake, must not hold the command up: one whose output
    nobody reads waits for ever.
    """
    for line in lines:
        for sink in sinks:
            with suppress(OSError):
                sink.write(line)


def _wait(child: subprocess.Popen[bytes], parent: int) -> int:
    """Wait for ``child``; kill its whole process group when this process's own parent has gone."""
    while True:
        try:
            return child.wait(_WATCH_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                os.killpg(child.pid, signal.SIGKILL)
                return child.wait()


if __name__ == "__main__":
    raise SystemExit(main())
