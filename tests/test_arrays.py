"""The array files are plain .npy files with fixed bytes."""

from __future__ import annotations

import os

import numpy as np
import pytest

from scaffold.arrays import HEADER_BYTES, ArrayFile, read_into, write_at


@pytest.fixture
def file(tmp_path):
    made = ArrayFile(tmp_path / "a.npy", (3, 2, 4), "<u2")
    made.path.write_bytes(made.header + np.arange(24, dtype="<u2").tobytes())
    return made


def test_numpy_reads_and_maps_it(file):
    """Broken when the header that we write ourselves is not one that NumPy understands."""
    for mode in (None, "r"):
        found = np.load(file.path, mmap_mode=mode, allow_pickle=False)
        assert found.dtype == np.uint16
        assert np.array_equal(found, np.arange(24).reshape(3, 2, 4))
    assert HEADER_BYTES % os.sysconf("SC_PAGE_SIZE") == 0 or os.sysconf("SC_PAGE_SIZE") > HEADER_BYTES
    assert file.size == file.path.stat().st_size
    assert file.header_problem() is None


@pytest.mark.parametrize("index", [(0,), (2,), (1, 1), (2, 1, 3)])
def test_offsets_point_at_the_element(file, index):
    """Broken when an offset is counted in the wrong axis, item size or from the wrong start."""
    with open(file.path, "rb") as stream:
        stream.seek(file.offset(*index))
        found = np.frombuffer(stream.read(2), dtype="<u2")[0]
    assert found == np.arange(24).reshape(3, 2, 4)[index].ravel()[0]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: os.truncate(path, 4100), "is truncated: 4100 of 4144 bytes"),
        (lambda path: os.truncate(path, 4150), "has 4150 bytes instead of 4144"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"<u2", b"<i2")), "does not begin with the header"),
    ],
)
def test_damage_is_named(file, damage, problem):
    """Broken when a missing, short, long or foreign file passes for ours."""
    damage(file.path)
    assert problem in file.header_problem()


def test_partial_transfers_are_continued(file, monkeypatch):
    """Broken when one system call's worth (2 GiB at most on Linux) is taken for the whole."""
    pread, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: pread(fd, [buffers[0][:5]], offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, content, offset: pwrite(fd, content[:7], offset))
    buffer = np.zeros((2, 4), dtype="<u2")
    with open(file.path, "r+b") as stream:
        write_at(stream.fileno(), np.full((2, 4), 9, dtype="<u2"), file.offset(1))
        assert read_into(stream.fileno(), buffer, file.offset(1)) == 16
        assert read_into(stream.fileno(), buffer[:1], file.offset(2, 1, 2)) == 4, "the file ends there"
    assert (buffer == 9).sum() == 6
    assert np.load(file.path)[0].ravel().tolist() == list(range(8)), "nothing else was written"
