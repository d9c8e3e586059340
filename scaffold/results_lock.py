"""One Snakemake at a time on a results folder.

Snakemake's own lock guards a working directory and outlives a killed process. This one guards the
results folder, from whatever directory it is used, and the kernel lifts it when its process ends,
however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

from scaffold import provenance
from scaffold.errors import UserError

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class ResultsLock:
    """An exclusive lock on a results folder, from :meth:`acquire` to the end of the process.

    Args:
        results: the folder; ``acquire`` makes it if it is missing.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.path = results / ".lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting.

        Raises:
            UserError: another process holds the lock (the message names its host and pid), or the
                folder cannot be written.
        """
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "which has just started"
            file.close()
            raise UserError(
                f"{self.results} is in use by another Snakemake ({holder}); wait for it or stop it"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            logging.getLogger("scaffold").warning(
                "%s: this file system has no locks; make sure that no other Snakemake works there", self.results
            )
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, pid {os.getpid()}, since {provenance.now()}\n")
        file.flush()
        self._file = file

    def _open(self) -> IO[str]:
        try:
            self.results.mkdir(parents=True, exist_ok=True)
            # Not "w": the name of a present holder must survive those who are refused.
            return open(self.path, "a+", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write in {self.results}: {error.strerror}") from error
