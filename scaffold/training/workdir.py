"""The folder in which a training survives being killed.

``{output}/work/{resume identity}/`` holds what is not a declared output of the workflow: checkpoints,
live statistics, and these files about the training itself:

* ``lock.json``: who trains here now. Its modification time is a heartbeat.
* ``attempts.json``: each attempt with its start, end and reason. One that was killed has no end; the
  next one closes it.
* ``failed.json``: why no further attempt can help, until the user removes it.
* ``sealed.json``: the workflow has recorded the result; a later start is a forced one, and trains afresh.

Nothing here imports torch: the workflow's own process seals folders.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scaffold import atomic, provenance
from scaffold.errors import DamagedFileError, ExitCode, IncurableError, UserError
from scaffold.parallel import environment

HEARTBEAT_S = 15.0
STALE_AFTER_S = 120.0
"""A lock whose owner cannot be asked (another host) is stale when its heartbeat is older than this."""

ATTEMPTS_WITHOUT_PROGRESS = 3

LOCK, ATTEMPTS, FAILED, SEALED = "lock.json", "attempts.json", "failed.json", "sealed.json"

log = logging.getLogger("scaffold")


def work_path(output: Path, resume_identity: str) -> Path:
    """Return the work folder of the training whose outputs go to ``output``."""
    return output / "work" / resume_identity


def seal(output: Path) -> None:
    """Note that the result in ``output`` is recorded, so that the next start there trains afresh.

    Does nothing if the result is not complete or its work folder is gone.
    """
    try:
        result = json.loads((output / "result.json").read_text())
        work = work_path(output, result["resume_identity"])
    except (OSError, ValueError, KeyError):
        return
    if work.is_dir():
        atomic.write_json(work / SEALED, {"training_identity": result["training_identity"], "at": provenance.now()})


def clean(output: Path, keep_checkpoints: bool = False) -> list[Path]:
    """Remove the work folders below ``output``; return them.

    Args:
        output: a run's folder, or any folder above or below it that has work folders.
        keep_checkpoints: only forget that attempts failed, and let training continue.

    Raises:
        UserError: there is no work folder, or a training is running in one.
    """
    folders = sorted({path.parent for name in (ATTEMPTS, LOCK) for path in output.rglob(name)})
    if (output.parent / ATTEMPTS).exists():
        folders = [output.parent]
    if not folders:
        raise UserError(f"{output} has no work folder of a training; give results/runs/RUN/ranksN/seedS")
    for folder in folders:
        lock = Lock(folder)
        lock.acquire()
        try:
            if keep_checkpoints:
                (folder / FAILED).unlink(missing_ok=True)
                Attempts(folder).forgive()
            else:
                shutil.rmtree(folder)
        finally:
            lock.release()
    return folders


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
            "since": provenance.now(),
        }

    def _held_by(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            return {"mtime": self.path.stat().st_mtime, **content}
        except FileNotFoundError:
            return None
        except ValueError as error:
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
            if self._now() - guard.stat().st_mtime > STALE_AFTER_S:
                guard.unlink(missing_ok=True)
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


@dataclass
class Attempt:
    """One start of a training.

    Attributes:
        start: UTC, ISO 8601.
        host: of rank 0.
        job: the scheduler's job, or None.
        first_epoch: the first epoch it was to train; None until that is known.
        last_epoch: the last epoch whose checkpoint is on disk; None if it added none.
        end: UTC, ISO 8601; for a killed attempt the last sign of life; None while it runs.
        wall_s: from start to end, seconds.
        reason: why it ended: "converged", "epochs used up", "published", "stopped: SIGTERM",
            "time limit", "killed", or an error's message.
        exit_code: of its process; None if it was killed.
        forgiven: no longer counts as an attempt without progress.
        setup: seconds of its parts before the first epoch.
        world: what it ran on (:meth:`scaffold.parallel.launch.Context.describe`).
    """

    start: str
    host: str
    job: str | None
    first_epoch: int | None = None
    last_epoch: int | None = None
    end: str | None = None
    wall_s: float | None = None
    reason: str | None = None
    exit_code: int | None = None
    forgiven: bool = False
    setup: dict[str, float] | None = None
    world: dict[str, Any] | None = None


class Attempts:
    """The record of all attempts of a training; the last is the present one after :meth:`begin`.

    Args:
        folder: the work folder.

    Raises:
        DamagedFileError: the record is unreadable.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ATTEMPTS
        self.all: list[Attempt] = []
        self._started = time.monotonic()
        if self._path.exists():
            try:
                self.all = [Attempt(**entry) for entry in json.loads(self._path.read_text())]
            except (ValueError, TypeError) as error:
                raise DamagedFileError(
                    self._path, f"is unreadable ({error})", f"scaffold clean-run {folder}"
                ) from error

    @property
    def current(self) -> Attempt:
        """The attempt that is going on."""
        return self.all[-1]

    def begin(self, last_sign_of_life: float) -> None:
        """Add a new attempt, and close the one before if it was killed.

        Args:
            last_sign_of_life: of a killed attempt, POSIX time.
        """
        if self.all and self.current.end is None:
            self._close_killed(self.current, last_sign_of_life)
        self.all.append(Attempt(provenance.now(), socket.gethostname(), environment.job_id()))
        self.write()

    def resume_from(self, epoch: int) -> None:
        """Note that this attempt continues after ``epoch``, which also says what killed ones achieved."""
        self.current.first_epoch = epoch + 1
        reached = epoch
        for attempt in reversed(self.all[:-1]):
            if attempt.first_epoch is None:
                continue
            if attempt.last_epoch is None and attempt.first_epoch <= reached:
                attempt.last_epoch = reached
            reached = min(reached, attempt.first_epoch - 1)
        self.write()

    def reached(self, epoch: int) -> None:
        """Note the last epoch that the present attempt brought to disk; it may be an earlier attempt's."""
        first = self.current.first_epoch
        if first is not None and epoch >= first:
            self.current.last_epoch = epoch

    def end(self, reason: str, exit_code: int) -> None:
        """Close the present attempt."""
        self.current.end = provenance.now()
        self.current.wall_s = round(time.monotonic() - self._started, 3)
        self.current.reason, self.current.exit_code = reason, int(exit_code)
        self.write()

    def forgive(self) -> None:
        """Let earlier attempts without progress no longer count."""
        for attempt in self.all:
            attempt.forgiven = True
        self.write()

    def forget_earlier(self) -> None:
        """Keep the present attempt alone: the earlier ones belong to another training."""
        self.all = [self.current]
        self.write()

    def without_progress(self) -> int:
        """Return how many of the latest finished attempts in a row added no epoch."""
        count = 0
        for attempt in reversed(self.all):
            if attempt is self.current and attempt.end is None:
                continue
            if attempt.forgiven or attempt.last_epoch is not None or _is_innocent(attempt):
                break
            count += 1
        return count

    def lost_s(self, epoch_seconds: dict[int, float]) -> float:
        """Return the wall time of all earlier attempts less what of it counts: redone and abandoned work.

        Args:
            epoch_seconds: the time that counts for each epoch of the result.
        """
        lost = 0.0
        first_later = float("inf")
        for attempt in reversed(self.all):
            if attempt is not self.current:
                kept = [
                    seconds
                    for epoch, seconds in epoch_seconds.items()
                    if attempt.first_epoch is not None
                    and attempt.first_epoch <= epoch <= (attempt.last_epoch or 0)
                    and epoch < first_later
                ]
                lost += max((attempt.wall_s or 0.0) - sum(kept), 0.0)
            first_later = min(first_later, attempt.first_epoch or first_later)
        return lost

    def to_json(self) -> list[dict[str, Any]]:
        """Return the record as plain JSON types."""
        return [asdict(attempt) for attempt in self.all]

    def write(self) -> None:
        """Write the record."""
        atomic.write_json(self._path, self.to_json())

    def _close_killed(self, attempt: Attempt, last_sign_of_life: float) -> None:
        attempt.reason = "killed"
        started = datetime.fromisoformat(attempt.start)
        ended = max(last_sign_of_life, started.timestamp())
        attempt.end = datetime.fromtimestamp(ended, started.tzinfo).isoformat(timespec="seconds")
        attempt.wall_s = round(ended - started.timestamp(), 3)


class WorkDir:
    """A locked work folder with its record of attempts. Used on rank 0 only.

    Args:
        path: the folder (:func:`work_path`); made if missing.
        training_identity: of the settings; decides what a seal means.

    Raises:
        UserError: another training is running here.
        IncurableError: an earlier attempt failed for good, or three made no progress.
    """

    def __init__(self, path: Path, training_identity: str) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._closed = False
        self.lock = Lock(path)
        self.lock.acquire()
        try:
            self._break_seal(training_identity)
            self._refuse_failed()
            self.attempts = Attempts(path)
            self.attempts.begin(self._last_sign_of_life())
        except BaseException:
            self.lock.release()
            raise

    def check_progress(self) -> None:
        """Stop for good if the latest attempts all ended where they began.

        Called when the epoch to continue from is known (:meth:`Attempts.resume_from`).

        Raises:
            IncurableError: three attempts in a row added no epoch.
        """
        if self.attempts.without_progress() >= ATTEMPTS_WITHOUT_PROGRESS:
            reasons = "; ".join(
                str(attempt.reason) for attempt in self.attempts.all[-ATTEMPTS_WITHOUT_PROGRESS - 1 : -1]
            )
            raise IncurableError(f"{ATTEMPTS_WITHOUT_PROGRESS} attempts in a row made no progress ({reasons})")

    def close(self, reason: str, exit_code: int) -> None:
        """Record how this attempt ended and give the lock back; a second call does nothing.

        Args:
            reason: for the record.
            exit_code: of the process; if no retry can cure it, ``failed.json`` keeps the reason.

        Raises:
            WriteError: the file system refused; the next attempt will take this one for killed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.lock.check()
        except UserError as lost:
            log.warning("%s", lost)
            return
        try:
            if exit_code in (ExitCode.INCURABLE, ExitCode.DAMAGED):
                note = {"message": reason, "exit_code": exit_code, "at": provenance.now()}
                atomic.write_json(self.path / FAILED, note)
            if exit_code != ExitCode.DONE or self.attempts.current.end is None:
                self.attempts.end(reason, exit_code)
        finally:
            self.lock.release()

    def _last_sign_of_life(self) -> float:
        """Return when the attempt before last wrote anything here, POSIX time of the file system."""
        written = [path.stat().st_mtime for path in self.path.rglob("*.*") if path.name != LOCK]
        return max([self.lock.last_heartbeat or 0.0, *written])

    def _break_seal(self, training_identity: str) -> None:
        seal_path = self.path / SEALED
        if not seal_path.exists():
            return
        try:
            sealed = json.loads(seal_path.read_text())["training_identity"]
        except (ValueError, KeyError) as error:
            raise DamagedFileError(seal_path, f"is unreadable ({error})", f"scaffold clean-run {self.path}") from error
        if sealed == training_identity:
            log.info("the result of %s was complete: training afresh", self.path)
            for entry in self.path.iterdir():
                if entry.name in (LOCK, SEALED):
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        # Last: a kill in between leaves the seal, and the next start removes the rest.
        seal_path.unlink()

    def _refuse_failed(self) -> None:
        path = self.path / FAILED
        if not path.exists():
            return
        try:
            message = json.loads(path.read_text())["message"]
        except (ValueError, KeyError):
            message = f"{path} is unreadable"
        raise IncurableError(
            f"an earlier attempt failed for good: {message}."
            f" When the cause is removed, continue with: scaffold clean-run --keep-checkpoints {self.path};"
            f" or start afresh with: scaffold clean-run {self.path}"
        )


def _is_dead(held: dict[str, Any]) -> bool:
    """Return whether the owner is certainly gone: it ran here, and its process is no more."""
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


def _is_innocent(attempt: Attempt) -> bool:
    """Return whether the attempt's end says nothing about the training: finished, refused, or a person's Ctrl-C."""
    by_hand = (attempt.reason or "").startswith(("stopped: SIGINT", "interrupted"))
    return by_hand or attempt.exit_code in (ExitCode.DONE, ExitCode.USER_ERROR)
