"""Whose process has ended is known from its connection alone."""

import contextlib
import socket
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from scaffold.parallel.lifelines import Lifelines


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False)


def first_lost(own, *others, within_s=0.5):
    """Return the first rank that ``own`` finds lost, while the others look too; None if there is none."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found = own.lost()
        if found is not None:
            return found
        assert all(other.lost() is None for other in others)
        time.sleep(0.01)
    return None


@pytest.fixture
def three(store):
    """Three ranks that hold lines."""
    ranks = [Lifelines(rank, store, "127.0.0.1") for rank in range(3)]
    assert first_lost(*ranks, within_s=0.2) is None
    return ranks


def end(rank):
    """Close the connections of ``rank``, as the kernel does for a process that is killed."""
    for key in list(rank._sockets.get_map().values()):
        key.fileobj.close()


def test_a_rank_that_ends_is_named_to_rank_0(three):
    """It left no note, and a collective over NCCL would wait for it on the device until a time limit aborts all."""
    assert first_lost(three[0], *three[1:]) is None, "control: all live"
    end(three[2])
    assert first_lost(three[0], three[1]) == 2
    assert first_lost(three[0], three[1]) is None, "each is told once"


def test_the_end_of_rank_0_is_seen_where_another_serves_the_store(three):
    """Under torchrun the store is the agent's, and outlives rank 0."""
    end(three[0])
    assert first_lost(three[1]) == 0
    assert first_lost(three[2]) == 0


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.0\r\n\r\n", b"0" * 40])
def test_a_stranger_is_no_rank(store, hello):
    """A port scanner that comes and goes would end a training of a week."""
    own = Lifelines(0, store, "127.0.0.1")
    port = int(store.get("lifelines").decode().split()[0])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(hello)
        assert first_lost(own, within_s=0.2) is None
        stranger.settimeout(0.2)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            assert stranger.recv(1) == b"", "it must not be welcomed"
    assert first_lost(own, within_s=0.2) is None


def test_a_rank_that_is_not_welcomed_holds_nothing(store, monkeypatch):
    """Rank 0 that could not take it closes the connection, which is not its death."""
    own, refused = Lifelines(0, store, "127.0.0.1"), Lifelines(1, store, "127.0.0.1")
    monkeypatch.setattr(own, "_token", b"0" * 32)
    assert first_lost(refused, own) is None


def test_rank_0_may_be_slow_to_answer(store):
    """It may compile for long with its watcher held up; a rank that gave up on it would look dead to it."""
    ranks = [Lifelines(rank, store, "127.0.0.1") for rank in range(2)]
    assert first_lost(ranks[1], within_s=0.2) is None
    assert first_lost(*ranks) is None
    end(ranks[1])
    assert first_lost(ranks[0]) == 1, "control: its line is held"


def test_ranks_that_cannot_reach_rank_0_are_told_once(store, monkeypatch, caplog):
    """Where a firewall lets the store's port alone through, a killed rank is noticed late; nobody would know why."""
    ranks = [Lifelines(rank, store, "127.0.0.1") for rank in range(3)]

    def refuse(*arguments):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert first_lost(*ranks, within_s=0.1) is None
    (warned,) = [record.getMessage() for record in caplog.records]
    assert warned.startswith("rank 1 cannot reach rank 0 on 127.0.0.1 (Connection refused)")


def test_a_rank_0_that_cannot_listen_goes_on(store, monkeypatch, caplog):
    """The same, where it is rank 0 that has no port to give."""

    def refuse(*arguments, **keywords):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "create_server", refuse)
    ranks = [Lifelines(rank, store, "127.0.0.1") for rank in range(2)]
    assert first_lost(*ranks, within_s=0.1) is None
    assert "rank 0 cannot listen (Too many open files)" in caplog.text
