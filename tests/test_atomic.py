"""Files that appear whole or not at all, whatever interrupts their writer."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaffold import atomic
from scaffold.errors import ExitCode, WriteError


def start(code, *arguments, **options):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    return path


def alone(path):
    """Whether nothing lies beside ``path``."""
    return [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_new_content_replaces_the_old(target):
    atomic.write_text(target, "new äöü")
    assert target.read_bytes() == "new äöü".encode()
    with atomic.write(target) as file:
        file.write(b"\x00\x01")
    assert target.read_bytes() == b"\x00\x01"
    assert alone(target)


def test_missing_folders_are_made(tmp_path):
    atomic.write_json(tmp_path / "a" / "b" / "x.json", {"k": [1, 2.5, None]})
    assert (tmp_path / "a" / "b" / "x.json").read_text() == '{\n  "k": [\n    1,\n    2.5,\n    null\n  ]\n}\n'


def test_nothing_is_seen_before_the_end(target):
    with atomic.write(target) as file:
        file.write(b"half")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "half"


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), OSError(errno.EIO, "x", "other")], ids=repr
)
def test_an_exception_leaves_the_old_file_alone(target, error):
    def work():
        with atomic.write(target) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    assert target.read_text() == "old"
    assert alone(target)


def test_not_a_number_is_refused(target):
    """NaN is not JSON: half the readers would choke on it, the others read a null."""
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(target, {"fom": float("nan")})
    assert target.read_text() == "old"


def test_yaml_keeps_the_order(tmp_path):
    atomic.write_yaml(tmp_path / "x.yaml", {"b": 1, "a": {"d": [1], "c": None}})
    assert (tmp_path / "x.yaml").read_text() == "b: 1\na:\n  d:\n  - 1\n  c: null\n"


@pytest.mark.faults
@pytest.mark.parametrize("when", ["in mid-write", "before the rename"])
def test_kill_leaves_the_old_file(target, when):
    """Hazard 30: a kill in mid-write destroys the previous file."""
    code = """
        import os, sys, time
        from pathlib import Path
        from scaffold import atomic
        if sys.argv[2] == "before the rename":
            os.replace = lambda *a: (print("now", flush=True), time.sleep(60))
        with atomic.write(Path(sys.argv[1])) as file:
            file.write(b"x" * 1_000_000)
            if sys.argv[2] == "in mid-write":
                file.flush()
                print("now", flush=True)
                time.sleep(60)
    """
    process = start(code, target, when)
    assert process.stdout.readline() == "now\n"
    leftovers = [path for path in target.parent.iterdir() if path != target]
    assert len(leftovers) == 1, "the writer was not where this test wants it"
    assert leftovers[0].name.startswith(".")
    # Those of a living writer are not touched.
    atomic.remove_temporaries(target.parent)
    assert leftovers[0].exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert target.read_text() == "old"
    atomic.remove_temporaries(target.parent)
    assert alone(target)


def test_only_dead_writers_of_this_host_are_cleaned_up_after(tmp_path):
    """Hazard 35: temporaries pile up; but another host's writer cannot be asked whether it lives."""
    dead, host = start("import os; print(os.getpid())").communicate()[0].strip(), socket.gethostname()
    names = {
        f".a.npy.tmp.{host}.7.{dead}": False,
        f".a.npy.tmp.{host}.7.{os.getpid()}": True,
        f".a.npy.tmp.{host}.7.1": True,
        f".a.npy.tmp.elsewhere.7.{dead}": True,
        f".a.npy.tmp.{host}.notes": True,
        "a.npy": True,
    }
    for name in names:
        (tmp_path / name).touch()
    atomic.remove_temporaries(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names


@pytest.mark.faults
def test_full_disk_leaves_the_old_file_and_says_so(target):
    """Hazard 32: a write error swallowed. RLIMIT_FSIZE refuses as a full disk does, in write(), without root."""
    code = """
        import errno, os, resource, signal, sys
        from pathlib import Path
        from scaffold import atomic
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        atomic.write_text(sys.argv[1], "x" * 4096)
        try:
            atomic.write_text(sys.argv[1], "x" * 5000)
        except atomic.WriteError as error:
            print(error)
            sys.exit(int(error.exit_code))
    """
    process = start(code, target)
    out, err = process.communicate()
    assert process.returncode == ExitCode.IO_ERROR, err
    assert out.startswith(f"cannot write {target}: File too large")
    assert target.read_bytes() == b"x" * 4096
    assert alone(target)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_refusal_at_the_end_leaves_the_old_file(target, monkeypatch, code, hint, call):
    """Network file systems tell of a full disk only when the data are flushed."""

    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(WriteError, match=hint) as caught:
        atomic.write_text(target, "new")
    assert str(target) in str(caught.value)
    assert "older version" in str(caught.value)
    assert target.read_text() == "old"
    assert alone(target)


def test_folder_that_cannot_be_synced_is_no_error(target, monkeypatch):
    real = os.fsync

    def refuse_folders(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EINVAL, "x")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    atomic.write_text(target, "new")
    assert target.read_text() == "new"


def test_content_is_on_disk_before_it_is_visible(target, monkeypatch):
    """Renaming first would show an empty file after a power cut."""
    order = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), rename(a, b)))
    atomic.write_text(target, "new")
    assert len(order) == 3
    assert Path(order[0]).name.startswith(".result.json.tmp.")
    assert order[1:] == ["rename", str(target.parent)]


@pytest.mark.parametrize("below", ["x.json", "a/x.json", "a/b/x.json"])
def test_a_file_where_a_folder_should_be(target, below):
    """The clean-up of what was never made must not hide the first error behind a traceback."""
    with pytest.raises(WriteError, match="cannot write"):
        atomic.write_text(target / below, "new")
    assert target.read_text() == "old"


@pytest.mark.parametrize("depth", [1, 3])
def test_folder_that_may_not_be_made(tmp_path, monkeypatch, depth):
    """Permission is denied where the first missing folder should be, not always at the last."""

    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path.parents[depth - 1]))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(WriteError, match="permission denied: make the directory writable"):
        atomic.write_text(tmp_path / "a" / "b" / "c" / "x.json", "new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(target):
    target.parent.chmod(0o555)
    try:
        with pytest.raises(WriteError, match="permission denied"):
            atomic.write_text(target, "new")
    finally:
        target.parent.chmod(0o755)
    assert target.read_text() == "old"


def test_error_of_another_file_is_not_called_ours(target, tmp_path):
    """A missing input read inside the block would be reported as a disk that refuses to write."""
    with pytest.raises(FileNotFoundError), atomic.write(target):
        (tmp_path / "sub" / "input").read_bytes()
    assert target.read_text() == "old"


def test_threads_do_not_share_a_temporary_file(target):
    """Two writers of one path: the last one wins, whole; one temporary file for both would mix them."""
    entered, contents = threading.Barrier(4, timeout=30), [bytes([65 + i]) * 200_000 for i in range(4)]

    def work(content):
        with atomic.write(target) as file:
            entered.wait()
            file.write(content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(work, contents))
    assert target.read_bytes() in contents
    assert alone(target)


@pytest.mark.faults
def test_a_reader_never_sees_a_part(target):
    """Three processes write whole files of one letter while this one reads."""
    code = """
        import sys
        from scaffold import atomic
        print("ready", flush=True)
        for i in range(40):
            atomic.write_text(sys.argv[1], sys.argv[2] * (50_000 + 1000 * i))
    """
    writers = [start(code, target, letter) for letter in "abc"]
    seen = set()
    while any(process.poll() is None for process in writers):
        content = target.read_bytes()
        assert content == b"old" or (len(set(content)) == 1 and len(content) % 1000 == 0)
        seen.add(content[:1] + str(len(content)).encode())
    assert [process.communicate()[1] for process in writers] == [""] * 3
    assert len(seen) > 5, "the reader came too late to see anything"
    assert alone(target)


def test_temporary_path_of_a_large_file_is_committed_by_name(target):
    """The data set writes its temporary files itself, at offsets, and commits them."""
    temporary = atomic.temporary_path(target)
    assert temporary.parent == target.parent
    temporary.write_bytes(b"new")
    atomic.commit(temporary, target)
    assert target.read_bytes() == b"new"
    assert alone(target)
    with pytest.raises(WriteError):
        atomic.commit(temporary, target)
    assert target.read_bytes() == b"new"
