"""The 145 instances of a category and their file."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fractal_reference import scaling, small_config, system
from launching import scaffold_on

from scaffold.cli import main
from scaffold.errors import DamagedFileError, ExitCode, UserError
from scaffold.fractals import ifs, instances
from scaffold.fractals.categories import load_categories
from scaffold.fractals.instances import generate_instances, instance_key, instance_params, load_instance
from scaffold.parallel.team import RankError

RUNAWAYS = {105: 0.5, 106: 0.5, 107: 0.25, 108: 0.25}
"""Of category 1 of the library of seed 42 at scale 6: instance -> attenuation that it needs."""


@pytest.fixture(scope="module")
def params(library: Path) -> np.ndarray:
    """Category 1 of the library."""
    return load_categories(library)[1]


@pytest.fixture(scope="module")
def clouds(params: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of category 1."""
    output = tmp_path_factory.mktemp("instances") / "1.npy"
    generate_instances(small_config(), params, 1, output)
    return output


def test_each_instance_scales_one_coefficient_of_both_maps() -> None:
    """The order is part of the data: coefficient by coefficient, factors rising; probabilities stay."""
    params = np.arange(1.0, 27.0).reshape(2, 13)
    ratios = np.array([instance_params(params, i) / params for i in range(145)])
    assert (ratios[0] == 1).all()
    expected = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    for coefficient in range(12):
        block = ratios[1 + 12 * coefficient : 13 + 12 * coefficient]
        np.testing.assert_allclose(block[:, :, coefficient], np.stack([expected, expected], 1), rtol=1e-15)
        assert (np.delete(block, coefficient, axis=2) == 1).all()
    for wrong in (-1, 145):
        with pytest.raises(IndexError):
            instance_params(params, wrong)


def test_attenuation_shrinks_the_deviation_from_one() -> None:
    """Attenuating the factor itself, rather than its deviation, would collapse the fractal."""
    params = np.ones((2, 13))
    found = [instance_params(params, 12, attenuation)[0, 0] for attenuation in instances.ATTENUATIONS]
    np.testing.assert_allclose(found, [1.6, 1.3, 1.15, 1.06, 1.0], rtol=1e-15)
    assert found[-1] == 1.0


def test_the_file_holds_the_clouds_of_the_plain_game(clouds: Path, params: np.ndarray) -> None:
    """Each cloud is the chaos game of its instance with its own draws, as float32, readable by NumPy."""
    stored = np.load(clouds)
    assert stored.dtype == np.float32
    assert stored.shape == (145, 1024, 3)
    for instance in (0, 1, 17, 144):
        cloud = ifs.points(instance_params(params, instance), 1024, instance_key(42, 1, instance))
        np.testing.assert_array_equal(stored[instance], cloud.astype(np.float32))
        np.testing.assert_array_equal(load_instance(clouds, instance), stored[instance])
    assert np.isfinite(stored).all()


def test_a_runaway_is_attenuated_with_the_same_draws(clouds: Path, params: np.ndarray) -> None:
    """Hundreds of instances in a large library run away; each must keep its draws and be recorded."""
    for instance, kept in RUNAWAYS.items():
        key = instance_key(42, 1, instance)
        tried = [a for a in instances.ATTENUATIONS if a > kept]
        assert tried
        for attenuation in tried:
            cloud = ifs.points(instance_params(params, instance, attenuation), 1024, key)
            assert not (np.abs(cloud) <= ifs.LIMIT).all()
        expected = ifs.points(instance_params(params, instance, kept), 1024, key).astype(np.float32)
        np.testing.assert_array_equal(load_instance(clouds, instance), expected)
    recorded = json.loads(clouds.with_suffix(".json").read_text())["attenuated"]
    assert {item["instance"]: item["attenuation"] for item in recorded} == RUNAWAYS
    assert recorded[0] == {"instance": 105, "coefficient": "a22", "factor": 1.3, "attenuation": 0.5}


def test_each_attenuation_is_warned_of(params: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A data set with altered instances must not come about silently."""
    with caplog.at_level(logging.WARNING):
        generate_instances(small_config(), params, 1, tmp_path / "1.npy")
    assert len(caplog.messages) == len(RUNAWAYS)
    assert caplog.messages[0] == ("category 1, instance 105: runs away with a22 scaled by 1.3; scaled by 1.15 instead")


def test_a_category_without_a_bounded_cloud_is_an_error(tmp_path: Path) -> None:
    """It names category and instance, and leaves nothing that looks like a result."""
    doubling = system(scaling(2.0, 1.0), scaling(2.0, 1.0))
    with pytest.raises(RankError, match=r"category 7, instance \d+: even the unscaled") as error:
        generate_instances(small_config(), doubling, 7, tmp_path / "7.npy")
    assert error.value.exit_code is ExitCode.USER_ERROR
    assert list(tmp_path.iterdir()) == []


def test_threads_and_pieces_change_nothing(
    clouds: Path, params: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud written in uneven pieces by three threads has the same bytes, runaways retried included."""
    monkeypatch.setattr(instances, "_PIECE", 100)
    attenuated = generate_instances(small_config(), params, 1, tmp_path / "1.npy", threads=3)
    assert (tmp_path / "1.npy").read_bytes() == clouds.read_bytes()
    assert {item.instance: item.attenuation for item in attenuated} == RUNAWAYS


def test_the_clouds_have_not_changed(clouds: Path) -> None:
    """If this fails, every published data set has changed: raise the code version of the stage ``instances``."""
    assert hashlib.sha256(clouds.read_bytes()).hexdigest()[:16] == "3942b1cb177c632d"


def test_memory_does_not_grow_with_the_scale(
    params: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At scale 11 the file has 58 GB: a worker holds one piece, far less than the 14 MB of this file."""
    monkeypatch.setattr(instances, "_PIECE", 1024)
    config = small_config(problem_scale=7)
    generate_instances(small_config(), params, 1, tmp_path / "warm.npy")
    tracemalloc.start()
    generate_instances(config, params, 1, tmp_path / "1.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = (tmp_path / "1.npy").stat().st_size
    assert size > 14e6
    assert peak < 1e6


def test_a_full_disk_leaves_the_old_file(
    clouds: Path, params: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hazard 30: a failed write must not cost the previous file, nor leave a part of a new one."""
    output = tmp_path / "1.npy"
    output.write_bytes(clouds.read_bytes())
    original, calls = os.pwrite, []

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RankError, match=r"cannot write .*1\.npy: the disk is full: free some space") as error:
        generate_instances(small_config(), params, 1, output)
    assert error.value.exit_code is ExitCode.IO_ERROR
    assert output.read_bytes() == clouds.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["1.npy"]


def test_short_writes_are_continued(
    clouds: Path, params: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may take less than it was given; the rest would stay zero."""
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: original(descriptor, data[:5000], offset))
    generate_instances(small_config(), params, 1, tmp_path / "1.npy")
    assert (tmp_path / "1.npy").read_bytes() == clouds.read_bytes()


def test_what_a_killed_writer_left_is_removed(params: np.ndarray, tmp_path: Path) -> None:
    """58 GB that nobody owns would stay for ever."""
    host = os.uname().nodename
    leftover = tmp_path / f".0.npy.tmp.{host}.4194305"  # above the greatest process id of Linux
    leftover.touch()
    generate_instances(small_config(), params, 1, tmp_path / "1.npy")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.json", "1.npy"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], r"has \d+ bytes instead of \d+"),
        (lambda data: data + b"\0", r"has \d+ bytes instead of \d+"),
        (lambda data: data[:40], r"is not a \.npy file"),
        (lambda data: b"", r"is not a \.npy file"),
        (lambda data: b"P" + data[1:], r"is not a \.npy file"),
        (lambda data: data.replace(b"<f4", b"<i4", 1), r"holds int32 \(145, 1024, 3\) instead of float32"),
        (lambda data: data.replace(b"(145, 1024, 3)", b"(144, 1024, 3)", 1), r"holds float32 \(144, 1024, 3\)"),
        (lambda data: data.replace(b"False", b"True ", 1), r"instead of float32"),
    ],
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], message: str, clouds: Path, tmp_path: Path) -> None:
    """A truncated file would give clouds of zeros; the error names it and the command that rebuilds it."""
    path = tmp_path / "1.npy"
    path.write_bytes(damage(clouds.read_bytes()))
    with pytest.raises(DamagedFileError, match=message) as error:
        load_instance(path, 3)
    assert f"rebuild it with: snakemake --profile profiles/local --configfile results/study.yaml --force {path}" in str(
        error.value
    )


def test_reading_what_is_not_there(clouds: Path, tmp_path: Path) -> None:
    """A missing file is the user's to make; a wrong index is the caller's mistake."""
    with pytest.raises(UserError, match="does not exist; make it with: snakemake"):
        load_instance(tmp_path / "1.npy", 0)
    with pytest.raises(IndexError):
        load_instance(clouds, 145)


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_change_no_byte(ranks: int, clouds: Path, library: Path, study: Path, tmp_path: Path) -> None:
    """145 clouds dealt to any number of ranks make the same file, and the same record of attenuation."""
    output = tmp_path / "new" / "1.npy"
    arguments = ["--categories", library, "--category", 1, "--output", output, "--threads", 2]
    process = scaffold_on(ranks, "instances", "--config", study, *arguments)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("4 of them attenuated") == 1
    assert process.stderr.count("runs away") == 4
    assert output.read_bytes() == clouds.read_bytes()
    made, expected = (json.loads(file.with_suffix(".json").read_text()) for file in (output, clouds))
    assert made["attenuated"] == expected["attenuated"]
    assert sorted(file.name for file in output.parent.iterdir()) == ["1.json", "1.npy"]


@pytest.mark.multirank
def test_ranks_fail_together(study: Path, tmp_path: Path) -> None:
    """A failing rank must not leave the others in a collective: both end, with the cause's exit code."""
    folder = tmp_path / "llnl"
    folder.mkdir()
    row = "2,0,0,0,2,0,0,0,2,1,1,1,0.5\n"
    (folder / "000000.csv").write_text(row + row)
    assert main(["import-library", str(folder), "--output", str(tmp_path / "library")]) == 0
    arguments = ["--categories", tmp_path / "library" / "categories.csv", "--category", 0]
    process = scaffold_on(2, "instances", "--config", study, *arguments, "--output", tmp_path / "0.npy")
    assert process.returncode == ExitCode.USER_ERROR, process.stderr
    assert "rank 0 of 2, making instances of category 0: category 0, instance 0" in process.stderr
    assert not (tmp_path / "0.npy").exists()
