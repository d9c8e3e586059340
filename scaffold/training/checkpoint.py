"""Checkpoints: all that a training needs to continue as if it had never been interrupted.

One checkpoint is one safetensors file: tensors (network, optimizer, random number generators), and in
its header everything else as JSON with a SHA-256 over both. So no kill can mix two versions, and a
flipped byte is noticed. ``last.safetensors`` is replaced at each save; ``best.safetensors`` is a copy
of it, made when the validation loss is the smallest so far, and the reserve if ``last`` is damaged.

Rank 0 alone touches files. Each operation ends in exactly one agreement of all ranks, whether it
succeeded or not, so a full disk on rank 0 stops every rank with the same error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch

from scaffold import atomic
from scaffold.errors import DamagedFileError
from scaffold.parallel.launch import Context
from scaffold.training import tensorfile
from scaffold.training.state import State

FORMAT_VERSION = 1
LAST, BEST = "last.safetensors", "best.safetensors"

_COPY_BYTES = 16 * 2**20

log = logging.getLogger("scaffold")


class Checkpoints:
    """The checkpoints of one training.

    Every method but one is collective: all ranks call it, in the same order.

    Args:
        directory: where they lie; made if missing. This process must be the only one to write there.
        context: all ranks of the training.
        background: write in a thread, so that training waits only for a copy in host memory.
    """

    def __init__(self, directory: Path, context: Context, background: bool) -> None:
        self.directory = directory
        self._context = context
        self._background = background
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._host_copy: State | None = None
        self._best_loss = float("inf")
        with context.together("preparing the checkpoint directory"):
            if context.rank == 0:
                directory.mkdir(parents=True, exist_ok=True)
                remove_strays(directory)

    def save(self, capture: Callable[[], State]) -> None:
        """Save what ``capture`` returns; it is called on rank 0 only.

        Raises:
            RankError: this save failed before its write began, or the write of the one before failed.
        """
        with self._context.together("saving a checkpoint"):
            if self._context.rank == 0:
                self._drain()
                # Its writer is through, so the last save's copy may be overwritten.
                self._host_copy = capture().on_host(self._host_copy)
                self._start(self._host_copy)

    def finish(self) -> None:
        """Wait until everything is on disk.

        Raises:
            RankError: the last write failed.
        """
        with self._context.together("finishing the last checkpoint"):
            self._drain()

    def let_finish(self) -> None:
        """Wait for a write that is under way, whatever comes of it. Not collective: for a process about to end."""
        if self._writer is not None:
            self._writer.join()

    def remove(self) -> None:
        """Remove all checkpoints, for a training that starts afresh.

        Raises:
            RankError: the last write failed, or a file cannot be removed.
        """
        with self._context.together("removing checkpoints"):
            self._drain()
            self._best_loss = float("inf")
            if self._context.rank == 0:
                for name in (LAST, BEST):
                    (self.directory / name).unlink(missing_ok=True)
                    (self.directory / f"{name}.corrupt").unlink(missing_ok=True)

    def load(self) -> State | None:
        """Return the newest checkpoint that is whole, or None if there is none; the same on every rank.

        Rank 0 reads and sends. A damaged file is set aside as ``*.corrupt`` once a whole one is found.

        Raises:
            RankError: there are checkpoints, but none is whole. They stay, so that the next start is
                refused too rather than begin afresh unasked.
        """
        with self._context.together("finishing the last checkpoint"):
            self._drain()
        own: list[State | None] = []

        def describe() -> tuple[dict[str, Any], dict[str, Any]] | None:
            state = self._newest()
            own.append(state)
            if state is None:
                return None
            return state.facts, {name: _spec(tensor) for name, tensor in state.tensors.items()}

        sent = self._context.share(describe, "loading the checkpoint")
        if sent is None:
            return None
        facts, specs = sent
        read_here = own[0].tensors if own and own[0] is not None else {}
        tensors = {}
        for name, (shape, dtype) in specs.items():
            tensor = read_here[name] if name in read_here else torch.empty(shape, dtype=dtype)
            tensors[name] = self._context.broadcast(tensor)
        return State(tensors, facts)

    def _newest(self) -> State | None:
        damaged = []
        for name in (LAST, BEST):
            path = self.directory / name
            try:
                state = read(path)
            except FileNotFoundError:
                continue
            except DamagedFileError as error:
                damaged.append(path)
                log.warning("%s", error)
                continue
            for other in damaged:
                set_aside(other)
                log.warning("set aside as %s.corrupt", other.name)
            self._best_loss = loss_of(self.directory / BEST)
            if state.facts["val_loss_avg"] < self._best_loss:
                # Killed after `last` was written and before its copy was, or the copy was lost.
                self._copy_to_best()
                self._best_loss = state.facts["val_loss_avg"]
            return state
        if damaged:
            raise DamagedFileError(
                damaged[0], "is damaged, and no other checkpoint is whole", f"scaffold clean-run {self.directory}"
            )
        return None

    def _start(self, state: State) -> None:
        is_best = state.facts["val_loss_avg"] < self._best_loss
        if not self._background:
            self._write(state, is_best)
        else:
            self._writer = threading.Thread(target=self._write_and_keep_failure, args=(state, is_best))
            self._writer.start()
        self._best_loss = min(self._best_loss, state.facts["val_loss_avg"])

    def _write(self, state: State, is_best: bool) -> None:
        write(self.directory / LAST, state)
        if is_best:
            self._copy_to_best()

    def _copy_to_best(self) -> None:
        with open(self.directory / LAST, "rb") as source, atomic.write(self.directory / BEST) as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)

    def _write_and_keep_failure(self, state: State, is_best: bool) -> None:
        try:
            self._write(state, is_best)
        except Exception as error:
            self._failure = error

    def _drain(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def write(path: Path, state: State) -> None:
    """Write ``state`` atomically.

    Raises:
        WriteError: the file system refused; what stood at ``path`` is intact.
    """
    text = json.dumps(state.facts, allow_nan=False)
    metadata = {"format_version": str(FORMAT_VERSION), "facts": text, "sha256": _digest(state.tensors, text)}
    tensorfile.write(path, state.tensors, metadata)


def read(path: Path) -> State:
    """Read and verify a checkpoint.

    Raises:
        FileNotFoundError: there is none.
        DamagedFileError: it is truncated, altered, or not a checkpoint of this format.
    """
    path.stat()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        version, text, expected = metadata["format_version"], metadata["facts"], metadata["sha256"]
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, f"is not a readable checkpoint ({error})") from error
    if version != str(FORMAT_VERSION):
        raise _damaged(path, f"has format version {version}, not {FORMAT_VERSION}")
    if _digest(tensors, text) != expected:
        raise _damaged(path, "has been altered: its SHA-256 differs from the one it was written with")
    return State(tensors, json.loads(text))


def loss_of(path: Path) -> float:
    """Return the validation loss of a checkpoint by its header alone; infinity if there is none to be read."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return float(json.loads(file.metadata()["facts"])["val_loss_avg"])
    except (FileNotFoundError, safetensors.SafetensorError, KeyError, TypeError, ValueError):
        return float("inf")


def set_aside(path: Path) -> None:
    """Rename a damaged file to ``*.corrupt``, for someone to look at; an earlier one is replaced."""
    os.replace(path, path.with_name(path.name + ".corrupt"))


def remove_strays(directory: Path) -> None:
    """Remove what killed writers of any host left in ``directory``; the caller holds its lock."""
    for stray in directory.glob(".*.tmp.*"):
        try:
            stray.unlink()
        except OSError as error:
            log.warning("could not remove %s: %s", stray, error.strerror)


def _digest(tensors: dict[str, torch.Tensor], text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        sha.update(f"{name} {_spec(tensors[name])}".encode())
        sha.update(tensorfile.bytes_of(tensors[name]))
    return sha.hexdigest()


def _spec(tensor: torch.Tensor) -> tuple[list[int], torch.dtype]:
    return list(tensor.shape), tensor.dtype


def _damaged(path: Path, problem: str) -> DamagedFileError:
    return DamagedFileError(path, problem, f"scaffold clean-run {path.parent}, and run the same command again")
