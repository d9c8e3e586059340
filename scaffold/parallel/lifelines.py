"""Noticing at once that the process of another rank is gone.

A rank that is killed leaves no note. The others see it by a collective of theirs that fails; but one over
NCCL does not fail, it waits on the device until NCCL's own time limit, which aborts the process. So each
rank holds a connection to rank 0 on which nothing is said: the operating system closes it when either
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_KEY = "lifelines"
_TOKEN_BYTES = 16
_WELCOME = b"+"
_HELLO_WITHIN_S = 5.0

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 6}
"""A node that is lost closes nothing; so the kernel asks, and gives up after three minutes."""


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
            server = socket.create_server(("", 0), backlog=1024)
            server.setblocking(False)
            self._sockets.register(server, selectors.EVENT_READ)
            store.set(_KEY, f"{server.getsockname()[1]} {self._token.decode()}")

    def lost(self) -> int | None:
        """Return a rank whose process has ended since the last call, or None. Does not wait.

        Raises:
            RuntimeError: the store is gone, and rank 0 with it.
        """
        if self._to_join and self._store.check([_KEY]):
            self._to_join = False
            with contextlib.suppress(OSError):
                self._join()
        for key, _ in self._sockets.select(0):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)  # noqa: S101 - nothing else was registered
            if key.data is None:
                self._accept_all(sock)
            elif _has_ended(sock):
                self._sockets.unregister(sock)
                sock.close()
                return int(key.data)
        return None

    def _join(self) -> None:
        port, token = self._store.get(_KEY).decode().split()
        line = socket.create_connection((self._host, int(port)), _HELLO_WITHIN_S)
        line.sendall(f"{token}{self._rank:08d}".encode())
        # Refused, it ends too, which is nobody's death.
        if line.recv(1) == _WELCOME:
            self._hold(line, 0)
        else:
            line.close()

    def _accept_all(self, server: socket.socket) -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            try:
                line.settimeout(_HELLO_WITHIN_S)
                hello = line.recv(2 * _TOKEN_BYTES + 8)
                if not secrets.compare_digest(hello[:-8], self._token):
                    raise ValueError(hello)
                rank = int(hello[-8:])
                line.sendall(_WELCOME)
                self._hold(line, rank)
            except (OSError, ValueError):
                line.close()

    def _hold(self, line: socket.socket, rank: int) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        line.setblocking(False)
        self._sockets.register(line, selectors.EVENT_READ, rank)


def _has_ended(line: socket.socket) -> bool:
    try:
        return not line.recv(64)
    except BlockingIOError:
        return False
    except OSError:
        return True
