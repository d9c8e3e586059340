"""Noticing at once that the process of another rank is gone.

A rank that is killed leaves no note. The others see it by a collective of theirs that fails; but one over
NCCL does not fail, it waits on the device until NCCL's own time limit, which aborts the process. So each
rank holds a connection to rank 0 on which nothing is said: the operating system closes it when either
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_KEY = "lifelines"
_WITHOUT = "lifelines/without"
_TOKEN_BYTES = 16
_WELCOME = b"+"
_CONNECT_WITHIN_S = 5.0

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 6}
"""A node that is lost closes nothing; so the kernel asks, and gives up after three minutes."""


log = logging.getLogger("scaffold")


class Lifelines:
    """The connections of this rank: of rank 0 to all others, of any other to rank 0.

    Args:
        rank: this one.
        store: of all ranks, where rank 0 leaves its port.
        host: rank 0's, which need not serve the store.
    """

    def __init__(self, rank: int, store: TCPStore, host: str) -> None:
        self._rank, self._store, self._host = rank, store, host
        self._sockets = selectors.DefaultSelector()
        self._token = b""
        self._to_join = rank != 0
        if rank == 0:
            # Whoever cannot name it is no rank of this job: a port scanner, say.
            self._token = secrets.token_hex(_TOKEN_BYTES).encode()
            try:
                server = socket.create_server(("", 0), backlog=1024)
            except OSError as error:
                self._warn(f"rank 0 cannot listen ({error.strerror or error})")
                return
            self._when_readable(server, self._accept)
            store.set(_KEY, f"{server.getsockname()[1]} {self._token.decode()}")

    def lost(self) -> int | None:
        """Return a rank whose process has ended since the last call, or None.

        Waits for nobody but, once, for a connection to rank 0's host.

        Raises:
            RuntimeError: the store is gone, and rank 0 with it.
        """
        if self._to_join and self._store.check([_KEY]):
            self._to_join = False
            try:
                self._join()
            except OSError as error:
                self._warn(f"rank {self._rank} cannot reach rank 0 on {self._host} ({error.strerror or error})")
        for key, _ in self._sockets.select(0):
            # Told to be readable, it need not be.
            with contextlib.suppress(BlockingIOError):
                lost: int | None = key.data(key.fileobj)
                if lost is not None:
                    return lost
        return None

    def _warn(self, fault: str) -> None:
        # Once, of what may befall a thousand ranks alike.
        if self._store.add(_WITHOUT, 1) == 1:
            log.warning("%s: a rank that is killed will be noticed only when a collective of others fails", fault)

    def _join(self) -> None:
        port, token = self._store.get(_KEY).decode().split()
        line = socket.create_connection((self._host, int(port)), _CONNECT_WITHIN_S)
        _keep_alive(line)
        line.sendall(f"{token}{self._rank:08d}".encode())
        # However long rank 0 takes to answer: hanging up would look to it like the end of this process.
        self._when_readable(line, self._welcomed)

    def _welcomed(self, line: socket.socket) -> None:
        if _read(line, len(_WELCOME)) == _WELCOME:
            self._when_readable(line, partial(self._watch, 0))
        else:
            # Refused, it ends too, which is nobody's death.
            self._close(line)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = server.accept()
                self._when_readable(line, self._greeted)

    def _greeted(self, line: socket.socket) -> None:
        hello = _read(line, 2 * _TOKEN_BYTES + 8)
        try:
            if not secrets.compare_digest(hello[:-8], self._token):
                raise ValueError(hello)
            rank = int(hello[-8:])
            line.sendall(_WELCOME)
        except (OSError, ValueError):
            self._close(line)
        else:
            _keep_alive(line)
            self._when_readable(line, partial(self._watch, rank))

    def _watch(self, rank: int, line: socket.socket) -> int | None:
        if _read(line, 1):
            return None
        self._close(line)
        return rank

    def _when_readable(self, line: socket.socket, act: Callable[[socket.socket], int | None]) -> None:
        """From now on let :meth:`lost` call ``act`` when ``line`` can be read, or accepted from, without waiting."""
        line.setblocking(False)
        if line in self._sockets.get_map():
            self._sockets.modify(line, selectors.EVENT_READ, act)
        else:
            self._sockets.register(line, selectors.EVENT_READ, act)

    def _close(self, line: socket.socket) -> None:
        self._sockets.unregister(line)
        line.close()


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read(line: socket.socket, most: int) -> bytes:
    """Return what has come, empty where the other end is gone."""
    try:
        return line.recv(most)
    except BlockingIOError:
        raise
    except OSError:
        return b""
