"""The folder in which a training survives being killed.

``work/{resume identity}/``, below the training's output folder, holds what is not a declared output of the
workflow: checkpoints, live statistics, and these files about the training itself:

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
import shutil
from pathlib import Path

from scaffold import atomic, provenance
from scaffold.errors import DamagedFileError, Ending, ExitCode, IncurableError, UserError
from scaffold.training.attempts import ATTEMPTS, Attempts
from scaffold.training.lock import LOCK, Lock

ATTEMPTS_WITHOUT_PROGRESS = 3

FAILED, SEALED = "failed.json", "sealed.json"

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


class WorkDir:
    """A locked work folder with its record of attempts. Used on rank 0 only.

    Args:
        path: the folder (:func:`work_path`); made if missing.
        training_identity: of the settings; decides what a seal means.

    Raises:
        UserError: another training is running here.
        IncurableError: an earlier attempt failed for good.
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
        """Stop for good if attempt after attempt ended by its own doing before it had finished an epoch.

        Called when the epoch to continue from is known (:meth:`Attempts.resume_from`). Attempts that
        were ended from outside do not count, however many: the same command then continues.

        Raises:
            IncurableError: there were three of them.
        """
        in_vain = self.attempts.without_progress()
        if len(in_vain) >= ATTEMPTS_WITHOUT_PROGRESS:
            reasons = "; ".join(str(attempt.reason) for attempt in in_vain)
            raise IncurableError(f"{len(in_vain)} attempts ended without finishing an epoch ({reasons})")

    def close(self, ending: Ending, reason: str, exit_code: int) -> None:
        """Record how this attempt ended and give the lock back; a second call does nothing.

        Args:
            ending: why.
            reason: the same in words.
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
            if exit_code == ExitCode.INCURABLE:
                note = {"message": reason, "exit_code": exit_code, "at": provenance.now()}
                atomic.write_json(self.path / FAILED, note)
            if exit_code != ExitCode.DONE or self.attempts.current.end is None:
                self.attempts.end(ending, reason, exit_code)
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
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedFileError(seal_path, f"is unreadable ({error})", f"rm {seal_path}") from error
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
        except (ValueError, TypeError, KeyError):
            message = f"{path} is unreadable"
        raise IncurableError(
            f"an earlier attempt failed for good: {message}."
            f" When the cause is removed, continue with: scaffold clean-run --keep-checkpoints {self.path};"
            f" or start afresh with: scaffold clean-run {self.path}"
        )
