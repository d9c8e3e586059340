"""Files that appear whole or not at all.

Everything that another process may read is written through this module: a temporary file in the
same directory, flush, fsync, rename over the target, fsync of the directory. A reader sees the old
file or the new one, never a part of either, also after ``kill -9`` or a power cut.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from scaffold.errors import WriteError

_TEMPORARY = ".tmp."


def temporary_path(path: Path) -> Path:
    """Return the name under which this thread prepares ``path``: same directory, hidden, its own."""
    owner = f"{socket.gethostname()}.{threading.get_native_id()}.{os.getpid()}"
    return path.parent / f".{path.name}{_TEMPORARY}{owner}"


def commit(temporary: Path, path: Path) -> None:
    """Make the finished file ``temporary`` durable and visible as ``path``.

    Raises:
        WriteError: the file system refused (full, quota, read-only); ``path`` is as it was.
    """
    with refusals(path):
        _fsync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        _fsync(path.parent, os.O_RDONLY)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Tell in the user's terms what the file system refuses inside the block, which prepares ``path``.

    Raises:
        WriteError: in place of any ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise _worded(path, error) from error


@contextmanager
def write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file that becomes ``path`` when the block ends without an exception.

    Missing parent directories are made. On any exception the temporary file is removed and what
    stood at ``path`` stays.

    Args:
        path: the file to make.
        mode: ``"wb"`` or ``"w"`` (UTF-8).

    Raises:
        WriteError: the file system refused (full, quota, permissions).
    """
    target = Path(path)
    temporary = temporary_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        commit(temporary, target)
    except OSError as error:
        ours = {None, str(temporary), *(str(folder) for folder in target.parents)}
        if error.filename in ours:
            raise _worded(target, error) from error
        raise
    finally:
        # Where the folder could not be made there is nothing to remove either.
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write ``content`` to ``path`` atomically, as UTF-8."""
    with write(path, "w") as file:
        file.write(content)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content`` as indented JSON; NaN and infinities are refused, since they are not JSON."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_yaml(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content`` as YAML with its keys in the order given."""
    write_text(path, yaml.safe_dump(content, sort_keys=False, width=120))


def remove_temporaries(directory: Path) -> None:
    """Remove what killed writers of this host left in ``directory``; those still running keep theirs."""
    host = socket.gethostname()
    for leftover in directory.glob(f".*{_TEMPORARY}{host}.*"):
        pid = leftover.name.rpartition(".")[2]
        if pid.isdigit() and not _is_running(int(pid)):
            leftover.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the rename itself has succeeded there.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def _worded(path: Path, error: OSError) -> WriteError:
    hints = {
        errno.ENOSPC: "the disk is full: free some space, then run the same command again",
        errno.EDQUOT: "the quota is used up: free some space, then run the same command again",
        errno.EACCES: "permission denied: make the directory writable, then run the same command again",
        errno.EROFS: "the file system is read-only",
    }
    cause = hints.get(error.errno or 0, error.strerror or str(error))
    return WriteError(f"cannot write {path}: {cause} (an older version of the file, if any, is intact)")
