"""Checkpoints: whole or not at all, noticed when damaged, and agreed upon by all ranks."""

import errno
import threading
import time

import pytest
import torch
from tiny_learner import ThreadTeam

from scaffold import atomic
from scaffold.errors import DamagedFileError, ExitCode, WriteError
from scaffold.parallel.launch import Context
from scaffold.parallel.team import RankError
from scaffold.training import checkpoint
from scaffold.training.checkpoint import BEST, LAST, Checkpoints
from scaffold.training.state import State


class ThreadContext(ThreadTeam):
    """Ranks as threads, with the broadcast that checkpoints need, counting collectives."""

    def exchange(self, value):
        self.calls = getattr(self, "calls", 0) + 1
        return super().exchange(value)

    def broadcast(self, tensor):
        tensor.copy_(super().exchange(tensor)[0])
        return tensor


def state(epoch, loss):
    return State({"model.w": torch.full((3,), float(epoch))}, {"epoch": epoch, "val_loss_avg": loss})


def filled(folder, losses, background=False):
    """Return checkpoints after one save for each loss, all on disk."""
    checkpoints = Checkpoints(folder, Context(), background)
    checkpoints.load()
    for epoch, loss in enumerate(losses, start=1):
        checkpoints.save(lambda epoch=epoch, loss=loss: state(epoch, loss))
    checkpoints.finish()
    return checkpoints


def flip(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("background", [False, True])
def test_last_is_the_last_and_best_has_the_smallest_loss(tmp_path, background):
    """Hazards 5, 34: equal losses keep the older best; the choice never reads a file being written."""
    filled(tmp_path, [0.9, 0.4, 0.4, 0.7], background)
    assert checkpoint.read(tmp_path / LAST).epoch == 4
    assert checkpoint.read(tmp_path / BEST).epoch == 2


def test_the_best_so_far_is_remembered_over_a_restart(tmp_path):
    """Hazard 34: a fresh cache makes the first, worse epoch after a restart the best."""
    filled(tmp_path, [0.9, 0.4])
    again = Checkpoints(tmp_path, Context(), background=False)
    assert again.load().epoch == 2
    again.save(lambda: state(3, 0.5))
    assert checkpoint.read(tmp_path / BEST).epoch == 2
    again.save(lambda: state(4, 0.3))
    assert checkpoint.read(tmp_path / BEST).epoch == 4


def test_a_lost_best_is_made_again(tmp_path):
    """Hazard 34: the best of a file that is gone must not keep all later ones from becoming it."""
    filled(tmp_path, [0.4])
    (tmp_path / BEST).unlink()
    again = Checkpoints(tmp_path, Context(), background=False)
    again.load()
    assert checkpoint.read(tmp_path / BEST).epoch == 1
    again.save(lambda: state(2, 0.5))
    assert checkpoint.read(tmp_path / BEST).epoch == 1


def test_a_kill_between_last_and_its_copy_leaves_no_stale_best(tmp_path):
    """Hazard 36: the reserve would stay an older, worse epoch until a better one came, if ever."""
    filled(tmp_path, [0.9])
    older = (tmp_path / BEST).read_bytes()
    filled(tmp_path, [0.9, 0.4])
    (tmp_path / BEST).write_bytes(older)
    Checkpoints(tmp_path, Context(), background=False).load()
    assert checkpoint.read(tmp_path / BEST).epoch == 2


def test_no_checkpoint_is_a_fresh_start(tmp_path):
    """Hazard 40 turned round: an empty folder is no error."""
    assert Checkpoints(tmp_path / "new", Context(), background=True).load() is None


@pytest.mark.parametrize("damage", ["flip", "flip header", "truncate", "empty"])
def test_a_damaged_last_is_set_aside_and_best_taken(tmp_path, damage):
    """Hazard 31: damage in last would block every resume, or worse, be trained on."""
    filled(tmp_path, [0.4, 0.5])
    last = tmp_path / LAST
    if damage == "flip":
        flip(last)
    elif damage == "flip header":
        flip(last, last.read_bytes().index(b"val_loss_avg") + 1)
    else:
        last.write_bytes(last.read_bytes()[:-1] if damage == "truncate" else b"")
    found = Checkpoints(tmp_path, Context(), background=False).load()
    assert found.epoch == 1
    assert torch.equal(found.tensors["model.w"], torch.full((3,), 1.0))
    assert (tmp_path / f"{LAST}.corrupt").exists()
    assert not last.exists()


def test_all_damaged_is_an_error_on_every_rank_each_time(tmp_path):
    """Hazards 31, 33: starting over silently would throw days away; a rank that raises alone hangs the others."""
    filled(tmp_path, [0.4])
    flip(tmp_path / LAST)
    flip(tmp_path / BEST)
    for _ in range(2):
        outcomes = ThreadContext.run(2, lambda context: Checkpoints(tmp_path, context, background=False).load())
        assert [type(outcome) for outcome in outcomes] == [RankError, RankError]
        assert {outcome.exit_code for outcome in outcomes} == {ExitCode.DAMAGED}
        assert "clean-run" in str(outcomes[1])


def test_a_checkpoint_of_another_format_is_named(tmp_path):
    """A newer version's file must not be half understood."""
    path = tmp_path / LAST
    checkpoint.tensorfile.write(path, {}, {"format_version": "2", "facts": "{}", "sha256": ""})
    with pytest.raises(DamagedFileError, match="format version 2, not 1"):
        checkpoint.read(path)


def test_only_rank_0_reads_and_all_get_the_same(tmp_path, monkeypatch):
    """Hazard 37: thousands of ranks reading one file stall the file system."""
    filled(tmp_path, [0.4])
    readers = []
    real_read = checkpoint.read
    monkeypatch.setattr(checkpoint, "read", lambda path: readers.append(threading.get_ident()) or real_read(path))
    states = ThreadContext.run(3, lambda context: Checkpoints(tmp_path, context, background=False).load())
    assert len(readers) == 1
    assert [found.epoch for found in states] == [1, 1, 1]
    assert all(torch.equal(found.tensors["model.w"], torch.full((3,), 1.0)) for found in states)


@pytest.fixture
def full_disk(monkeypatch):
    """Let the disk be full for checkpoints from the moment that the returned function is called."""

    def fill():
        def fsync(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(atomic.os, "fsync", fsync)

    return fill


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_is_told_on_every_rank_and_leaves_the_old_file(tmp_path, full_disk, background):
    """Hazards 30, 32, 33: swallowed, the job exits 0 without a file; raised on rank 0 alone, the others hang."""
    filled(tmp_path, [0.4])

    def ranks(context):
        checkpoints = Checkpoints(tmp_path, context, background)
        checkpoints.load()
        context.barrier()
        if context.rank == 0:
            full_disk()
        context.barrier()
        before = context.calls
        saved = finished = None
        try:
            checkpoints.save(lambda: state(2, 0.1))
        except RankError as error:
            saved = error
        one = context.calls - before
        try:
            checkpoints.finish()
        except RankError as error:
            finished = error
        return saved, finished, one, context.calls - before - one

    for saved, finished, at_save, at_finish in ThreadContext.run(2, ranks):
        told = finished if background else saved
        assert (saved is None) == background
        assert told.exit_code == ExitCode.IO_ERROR
        assert "free some space" in str(told)
        assert (at_save, at_finish) == (1, 1)
    assert checkpoint.read(tmp_path / LAST).epoch == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_failed_background_write_surfaces_once(tmp_path, full_disk, monkeypatch):
    """Hazard 32: at the next save; after that the writer is usable again."""
    checkpoints = filled(tmp_path, [0.4], background=True)
    full_disk()
    checkpoints.save(lambda: state(2, 0.1))
    with pytest.raises(RankError, match="the disk is full") as caught:
        checkpoints.save(lambda: state(3, 0.1))
    assert isinstance(caught.value.cause, WriteError)
    monkeypatch.undo()
    checkpoints.save(lambda: state(4, 0.1))
    checkpoints.finish()
    assert checkpoint.read(tmp_path / LAST).epoch == 4


def test_a_background_save_returns_before_the_write(tmp_path, monkeypatch):
    """The control of async_save: if it waited, there would be nothing in the background."""
    gate = threading.Event()
    real_write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda path, state: gate.wait(20) and real_write(path, state))
    checkpoints = Checkpoints(tmp_path, Context(), background=True)
    weights = torch.zeros(2)
    checkpoints.save(lambda: State({"model.w": weights}, {"epoch": 1, "val_loss_avg": 1.0}))
    assert not (tmp_path / LAST).exists()
    weights += 1
    gate.set()
    checkpoints.finish()
    assert torch.equal(checkpoint.read(tmp_path / LAST).tensors["model.w"], torch.zeros(2))


def test_a_save_leaves_the_copy_alone_that_is_being_written(tmp_path, monkeypatch):
    """A save overwrites the copy of the save before: too early, and two epochs are mixed under one digest."""
    found = []

    def slow(path, state):
        time.sleep(0.2)
        path.touch()
        found.append((state.epoch, state.tensors["model.w"].tolist(), state.tensors["model.w"].data_ptr()))

    monkeypatch.setattr(checkpoint, "write", slow)
    checkpoints = Checkpoints(tmp_path, Context(), background=True)
    for epoch in (1, 2):
        checkpoints.save(lambda epoch=epoch: state(epoch, 1.0 + epoch))
    checkpoints.let_finish()
    assert [(epoch, values) for epoch, values, _ in found] == [(1, [1.0] * 3), (2, [2.0] * 3)]
    assert found[0][2] == found[1][2], "the memory must be the same for the case to be one"


def test_a_process_about_to_end_lets_its_write_finish(tmp_path, monkeypatch):
    """An error in the epoch after would otherwise cost the epoch before."""
    real_write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda path, state: time.sleep(0.3) or real_write(path, state))
    checkpoints = Checkpoints(tmp_path, Context(), background=True)
    checkpoints.save(lambda: state(1, 0.5))
    checkpoints.let_finish()
    assert checkpoint.read(tmp_path / LAST).epoch == 1


def test_strays_of_killed_writers_go_and_evidence_stays(tmp_path):
    """Hazard 35: drafts of any host pile up, since restarts rarely land on the same one."""
    (tmp_path / f".{LAST}.tmp.elsewhere.123").write_bytes(b"half")
    (tmp_path / f"{LAST}.corrupt").write_bytes(b"evidence")
    Checkpoints(tmp_path, Context(), background=False)
    assert [path.name for path in tmp_path.iterdir()] == [f"{LAST}.corrupt"]


def test_removing_forgets_the_best(tmp_path):
    """Hazard 34: a deleted run's best would keep the new run from having one."""
    checkpoints = filled(tmp_path, [0.4])
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []
    checkpoints.save(lambda: state(1, 0.9))
    assert checkpoint.read(tmp_path / BEST).epoch == 1
