"""The right to train in a work folder: a file that one process holds, and whose age tells whether it lives."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from scaffold import atomic, provenance
from scaffold.errors import DamagedFileError, UserError
from scaffold.parallel import environment

LOCK = "lock.json"

_FACTS = ("token", "host", "processes", "pid", "job", "restarts", "since")

HEARTBEAT_S = 15.0
STALE_AFTER_S = 120.0
"""A lock whose owner cannot be asked (another host) is stale when its heartbeat is older than this."""

log = logging.getLogger("scaffold")


class Lock:
    """The right to train in a folder, held by one process.

    Args:
        folder: the work folder; must exist.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._token = uuid.uuid4().hex
        self._released = threading.Event()
        self._heart: threading.Thread | None = None
        self.lost = False
        self.last_heartbeat: float | None = None
        """When the owner of a stale lock that was taken over last gave a sign of life (POSIX time)."""

    def acquire(self) -> None:
        """Take the lock, from a dead owner if need be, and keep its heart beating.

        Waits up to two minutes where a silent owner lies on another host.

        Raises:
            UserError: another training is running here.
        """
        while not self._create():
            held = self._held_by()
            if held is None:
                continue
            if not (_is_dead(held) or self._falls_silent(held)):
                raise UserError(
                    f"another training is running in {self.path.parent}: process {held['pid']} on {held['host']}"
                    f"{' in ' + held['job'] if held['job'] else ''}, since {held['since']}; wait for it or stop it"
                )
            self._take_over(held)
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def release(self) -> None:
        """Give the lock back; without effect if it is not ours any more."""
        self._released.set()
        if self._heart is not None:
            self._heart.join()
            if self._is_ours():
                self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Make sure that the lock is still ours.

        Raises:
            UserError: another process took it over, since this one had been silent for too long.
        """
        if self.lost or not self._is_ours():
            raise UserError(f"another training took over {self.path.parent} while this one was suspended; it ends here")

    def _create(self) -> bool:
        # A link makes the lock appear with its content; O_EXCL alone would show an empty file first.
        draft = self.path.with_name(f".{LOCK}.{self._token}")
        atomic.write_json(draft, self._content())
        try:
            os.link(draft, self.path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def _content(self) -> dict[str, Any]:
        return {
            "token": self._token,
            "host": socket.gethostname(),
            "processes": _process_namespace(),
            "pid": os.getpid(),
            "job": environment.job_id(),
            "restarts": environment.restarts(),
            "since": provenance.now(),
        }

    def _held_by(self) -> dict[str, Any] | None:
        try:
            # Locks of earlier versions do not tell the start of their job; taken for this one, they are no ghosts.
            content: dict[str, Any] = {"restarts": environment.restarts()} | json.loads(self.path.read_text())
            held = {name: content[name] for name in _FACTS}
            return {"mtime": self.path.stat().st_mtime, **held}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, IsADirectoryError) as error:
            raise DamagedFileError(self.path, "is not a lock file", f"rm {self.path}") from error

    def _falls_silent(self, held: dict[str, Any]) -> bool:
        """Wait until the owner of ``held`` has been silent for too long; return False if it gives a sign of life."""
        age = self._now() - held["mtime"]
        if _is_here(held) and age < 2 * HEARTBEAT_S:
            return False
        if age < STALE_AFTER_S:
            log.info(
                "%s is locked by process %d on %s, last heard of %.0f s ago; waiting up to %.0f s for a sign of life",
                self.path.parent, held["pid"], held["host"], age, STALE_AFTER_S - age,
            )  # fmt: skip
        while self._now() - held["mtime"] < STALE_AFTER_S:
            time.sleep(min(1.0, HEARTBEAT_S / 2))
            seen = self._held_by()
            if seen is None or seen["token"] != held["token"]:
                return True
            if seen["mtime"] > held["mtime"]:
                return False
        return True

    def _now(self) -> float:
        """Return the file system's time, since the clocks of two hosts may differ."""
        probe = self.path.with_name(f".now.{self._token}")
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()

    def _take_over(self, held: dict[str, Any]) -> None:
        """Remove the stale lock ``held``; of several processes that want to, one does."""
        guard = self.path.with_name(f".{LOCK}.takeover.{held['token']}")
        try:
            guard.touch(exist_ok=False)
        except FileExistsError:
            # Whoever made the guard may remove it at any moment.
            with suppress(FileNotFoundError):
                if self._now() - guard.stat().st_mtime > STALE_AFTER_S:
                    guard.unlink()
            time.sleep(0.1)
            return
        try:
            seen = self._held_by()
            if seen is not None and seen["token"] == held["token"]:
                log.warning(
                    "the training of process %d on %s died; taking over its work folder", held["pid"], held["host"]
                )
                self.last_heartbeat = held["mtime"]
                self.path.unlink()
        finally:
            guard.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            try:
                if not self._is_ours():
                    self.lost = True
                    return
                os.utime(self.path)
            except (OSError, DamagedFileError) as error:
                log.warning("could not renew %s: %s", self.path, error)

    def _is_ours(self) -> bool:
        held = self._held_by()
        return held is not None and held["token"] == self._token


def _is_dead(held: dict[str, Any]) -> bool:
    """Return whether the owner is certainly gone: its process here is no more, or its job was started anew since."""
    if held["job"] is not None and held["job"] == environment.job_id() and held["restarts"] < environment.restarts():
        # A scheduler ends all of a job before it starts it again, wherever that was.
        return True
    if not _is_here(held):
        return False
    try:
        os.kill(held["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _is_here(held: dict[str, Any]) -> bool:
    return (held["host"], held["processes"]) == (socket.gethostname(), _process_namespace())


def _process_namespace() -> str:
    """Return what tells two containers of one host apart, in which the same pid means different processes."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
