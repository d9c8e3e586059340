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
    """An exclusive lock on a results folder, held until :meth:`release` or the end of the process.

    Args:
        results: the folder; made if missing.

    Raises:
        UserError: another process holds the lock; the message names its host and pid.
    """

    def __init__(self, results: Path) -> None:
        results.mkdir(parents=True, exist_ok=True)
        self.path = results / ".lock"
        # Opened for appending: a holder's name must survive those who are refused.
        self._file: IO[str] = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - held for life
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{results} is in use by another Snakemake ({self._holder()}); wait for it or stop it"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            logging.getLogger("scaffold").warning(
                "%s: this file system has no locks; make sure that no other Snakemake works there", results
            )
        self._file.truncate(0)
        self._file.write(f"host {socket.gethostname()}, pid {os.getpid()}, since {provenance.now()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others have the folder."""
        self._file.close()

    def _holder(self) -> str:
        self._file.seek(0)
        holder = self._file.read().strip()
        self._file.close()
        return holder or "it has just started"
