"""A rendered part has the right bytes, whoever renders it and in whatever pieces."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from launching import scaffold_on
from small_datasets import plain_render, small_config, write_instances

from scaffold import atomic
from scaffold.config import RunConfig
from scaffold.dataset import labels
from scaffold.dataset import memory as limits
from scaffold.dataset.memory import MEMORY, deepest_slab, memory_of_ranks
from scaffold.dataset.meta import load_part
from scaffold.dataset.render import cut, render_part
from scaffold.errors import ExitCode, UserError
from scaffold.parallel.team import RankError, Solo

ARRAYS = ("images.npy", "masks.npy")


def _bytes(part: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(part.iterdir()) if path.name != "part.json"}


def _memory_for(config: RunConfig, planes: int) -> int:
    """Return the least memory in which ``planes`` planes of a sample can be rendered at once."""
    with pytest.raises(UserError) as caught:
        deepest_slab(config, 0)
    least = int(re.search(r"(\d+) bytes", str(caught.value))[1])
    return least + (planes - 1) * config.vol_size**2 * (2 if config.storage.image == "dense" else 1)


def test_samples_equal_plain_rendering(made):
    """Broken when a fractal, its colour, its label or the order of painting is wrong in any sample."""
    for sample in range(made.config.n_volumes):
        part, row = divmod(sample, 64)
        folder = made.directory / "parts" / f"{part:04d}"
        image, mask = plain_render(made, sample)
        assert np.array_equal(np.load(folder / "masks.npy", mmap_mode="r")[row], mask)
        if made.config.storage.image == "dense":
            assert np.array_equal(np.load(folder / "images.npy", mmap_mode="r")[row], image)
    assert (folder / "images.npy").exists() == (made.config.storage.image == "dense")


def test_later_fractals_cover_earlier_ones(dense):
    """Broken when painting order is lost: there must be voxels that two fractals of a sample claim."""
    index = json.loads((dense.directory / "parts" / "0000" / "part.json").read_text())
    claimed = dense.config.point_num * dense.config.n_fracts_per_vol
    assert any(sum(list(entry["voxels"].values())[1:]) < claimed for entry in index["samples"])


def test_index_describes_the_arrays(made):
    """Broken when digests, counts or composition in part.json are not those of the stored bytes."""
    folder = made.directory / "parts" / "0001"
    index = json.loads((folder / "part.json").read_text())
    masks = np.load(folder / "masks.npy")
    assert [entry["id"] for entry in index["samples"]] == list(range(64, 80))
    for entry, mask in zip(index["samples"], masks, strict=True):
        found, counts = np.unique(mask, return_counts=True)
        assert entry["voxels"] == {str(label): int(n) for label, n in zip(found, counts, strict=True)}
        assert entry["digest"] == labels.sample_digest(labels.plane_digests(mask))
    assert index["made_by"]["commit"]


@pytest.mark.parametrize("planes", [1, 3, 16])
@pytest.mark.parametrize("piece", [1, 700, 2**18])
def test_slabs_and_pieces_leave_no_trace(made, tmp_path, monkeypatch, planes, piece):
    """Broken when bytes, digests or counts depend on the memory that was allowed; 3 planes do not divide 16."""
    monkeypatch.setattr(limits, "_PIECE_VOXELS", piece)
    memory = _memory_for(made.config, planes)
    render_part(made.config, 1, made.instances, tmp_path / "0001", Solo(), memory)
    index = load_part(tmp_path, 1)
    assert _bytes(tmp_path / "0001") == _bytes(made.directory / "parts" / "0001")
    assert [sample.digest for sample in index.samples] == made.meta.sample_digests[64:]
    assert sum(count for sample in index.samples for count in sample.voxels.values()) == 16 * 16**3


def test_memory_stays_within_the_bound(tmp_path):
    """Broken when a whole image or mask is held where memory for eight planes was allowed."""
    config = small_config(problem_scale=6, n_categories=1, n_instances_used_per_fractal=6, val_split=50)
    instances = write_instances(tmp_path / "instances", config)
    memory = _memory_for(config, 8)
    assert memory < config.vol_size**3 * 12, "control: an image would show"
    render_part(config, 0, instances, tmp_path / "warm", Solo())
    tracemalloc.start()
    try:
        render_part(config, 0, instances, tmp_path / "0000", Solo(), memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory
    assert _bytes(tmp_path / "0000") == _bytes(tmp_path / "warm")


@pytest.mark.parametrize("scale", [4, 7, 11, 12])
def test_memory_asked_for_is_what_every_rank_may_take(scale):
    """Broken when a scheduler kills the ranks of a part because one rank's memory was asked for."""
    config = RunConfig(problem_scale=scale)
    slab = deepest_slab(config) * config.vol_size**2 * 2
    one = memory_of_ranks(config, 1)
    assert slab + config.point_num * 12 < one < MEMORY + 600 * 2**20
    assert memory_of_ranks(config, 4) == 4 * one


@pytest.mark.parametrize(("scale", "whole"), [(8, True), (10, True), (11, False), (12, False)])
def test_four_gigabytes_suffice_at_any_scale(scale, whole):
    """Broken when a scale cannot be rendered within 4 GiB, or small volumes are cut for nothing."""
    config = RunConfig(problem_scale=scale)
    planes = deepest_slab(config)
    assert (planes == config.vol_size) == whole
    assert config.point_num * 12 + planes * config.vol_size**2 * 2 <= 4 * 2**30


def test_too_little_memory_is_the_users_to_mend():
    """Broken when memory for less than a plane loops or crashes."""
    with pytest.raises(UserError, match="bytes of memory"):
        deepest_slab(RunConfig(problem_scale=11), 2**20)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7, 100])
@pytest.mark.parametrize("deepest", [1, 5, 16])
def test_shares_cover_each_plane_once(ranks, deepest):
    """Broken when ranks render a plane twice, never, or out of order, or idle where there is work."""
    shares = cut(range(8, 11), 16, deepest, ranks)
    slabs = [slab for share in shares for slab in share]
    planes = [(slab.sample, z) for slab in slabs for z in range(slab.first, slab.last)]
    assert planes == [(sample, z) for sample in range(8, 11) for z in range(16)]
    assert max(slab.last - slab.first for slab in slabs) <= deepest
    assert len(shares) == ranks
    assert ranks > 48 or all(shares)


def test_files_have_no_holes(dense, tmp_path):
    """Broken when zeros are skipped on disk, so that reading costs less than the benchmark means to measure."""
    full = tmp_path / "full"
    size = (dense.directory / "parts" / "0000" / "images.npy").stat().st_size
    full.write_bytes(bytes(size))
    with open(tmp_path / "hole", "wb") as file:
        file.truncate(size)
    if full.stat().st_blocks * 512 < size or (tmp_path / "hole").stat().st_blocks * 512 >= size:
        pytest.skip("this file system does not tell holes from zeros")
    for name in ARRAYS:
        status = (dense.directory / "parts" / "0000" / name).stat()
        assert status.st_blocks * 512 >= status.st_size


@pytest.mark.parametrize("part", [-1, 2])
def test_unknown_part_is_refused(dense, tmp_path, part):
    """Broken when a part that the data set does not have is made."""
    with pytest.raises(RankError, match="parts 0 to 1") as caught:
        render_part(dense.config, part, dense.instances, tmp_path / "out", Solo())
    assert caught.value.exit_code == ExitCode.USER_ERROR
    assert not (tmp_path / "out").exists()


def test_bad_clouds_are_named(dense, tmp_path):
    """Broken when a damaged or missing cloud file is rendered, or not named with the command that rebuilds it."""
    instances = Path(shutil.copytree(dense.instances, tmp_path / "results" / "instances"))
    clouds = np.load(instances / "2.npy")
    clouds[:, 5, 1] = np.nan
    np.save(instances / "2.npy", clouds)
    with pytest.raises(RankError, match=r"2.npy has a bad instance \d+: it has a coordinate that") as caught:
        render_part(dense.config, 0, instances, tmp_path / "out", Solo())
    assert "--force results/instances/2.npy" in str(caught.value)
    assert caught.value.exit_code == ExitCode.DAMAGED
    np.save(instances / "2.npy", clouds[:, :4])
    with pytest.raises(RankError, match=r"2.npy has clouds of 4 points instead of 16"):
        render_part(dense.config, 0, instances, tmp_path / "out", Solo())
    (instances / "2.npy").unlink()
    with pytest.raises(RankError, match=r"2\.npy"):
        render_part(dense.config, 0, instances, tmp_path / "out", Solo())
    assert list((tmp_path / "out").iterdir()) == []


def test_full_disk_is_told_before_writing(dense, tmp_path, monkeypatch):
    """Broken when hours of rendering end on a disk whose lack of space was known at the start."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 9999, 9999))
    with pytest.raises(RankError, match=r"takes 0.004 GB and the file system has 0.000 GB left") as caught:
        render_part(dense.config, 0, dense.instances, tmp_path / "out", Solo())
    assert caught.value.exit_code == ExitCode.IO_ERROR
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.faults
def test_disk_full_midway_keeps_what_was_there(dense, tmp_path, monkeypatch):
    """Hazard 30: broken when a failed write damages an older part or leaves a half one."""
    part = Path(shutil.copytree(dense.directory / "parts" / "0001", tmp_path / "0001"))
    before = {path.name: path.read_bytes() for path in part.iterdir()}
    calls = []

    def pwrite(descriptor, content, offset, real=os.pwrite):
        calls.append(offset)
        if len(calls) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(RankError, match="the disk is full") as caught:
        render_part(dense.config, 1, dense.instances, part, Solo())
    assert caught.value.exit_code == ExitCode.IO_ERROR
    assert {path.name: path.read_bytes() for path in part.iterdir()} == before


def test_part_json_is_last(dense, tmp_path, monkeypatch):
    """Broken when part.json, of a former attempt or of this one, stands beside arrays that are not all there."""
    part = Path(shutil.copytree(dense.directory / "parts" / "0001", tmp_path / "0001"))
    seen = []

    def commit(temporary, path, real=atomic.commit):
        seen.append((path.name, (part / "part.json").exists()))
        real(temporary, path)

    monkeypatch.setattr(atomic, "commit", commit)
    render_part(dense.config, 1, dense.instances, part, Solo())
    assert seen == [("images.npy", False), ("masks.npy", False), ("part.json", False)]


_SLOW = """
import sys, time
from scaffold.dataset import render
real = render.write_at
def slow(*arguments):
    real(*arguments)
    time.sleep(0.05)
render.write_at = slow
from scaffold.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.faults
def test_killed_rendering_leaves_nothing_declared(dense, tmp_path):
    """Hazard 30: broken when kill -9 leaves a file that Snakemake or a reader takes for finished, or litter."""
    study = _study(tmp_path, dense.config)
    part = tmp_path / "0001"
    command = _command(study, dense.instances, part)
    process = subprocess.Popen([sys.executable, "-c", _SLOW, *command])
    deadline = time.monotonic() + 60
    while not list(part.glob(".*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = [path.name for path in part.iterdir()]
    assert len(left) == 2, "it was killed while writing"
    assert all(name.startswith(".") for name in left)
    subprocess.run([sys.executable, "-m", "scaffold", *command], check=True)
    assert sorted(path.name for path in part.iterdir()) == [*ARRAYS, "part.json"]
    assert _bytes(part) == _bytes(dense.directory / "parts" / "0001")


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_makes_the_same_bytes(dense, tmp_path, ranks):
    """Broken when the bytes of a part depend on how many ranks made it."""
    ours, theirs = tmp_path / "0001", dense.directory / "parts" / "0001"
    done = scaffold_on(ranks, *_command(_study(tmp_path, dense.config), dense.instances, ours))
    assert done.returncode == 0, done.stderr
    assert _bytes(ours) == _bytes(theirs)
    indices = [json.loads((part / "part.json").read_text()) for part in (ours, theirs)]
    assert indices[0]["samples"] == indices[1]["samples"]


@pytest.mark.multirank
def test_more_ranks_than_samples_share_a_volume(tmp_path):
    """Broken when a part of one volume, as at scale 9 and above, is not cut for the ranks, or wrongly."""
    config = small_config(n_categories=1, n_instances_used_per_fractal=6, val_split=50)
    instances = write_instances(tmp_path / "instances", config)
    render_part(config, 0, instances, tmp_path / "alone", Solo())
    done = scaffold_on(4, *_command(_study(tmp_path, config), instances, tmp_path / "0000", part=0))
    assert done.returncode == 0, done.stderr
    assert _bytes(tmp_path / "0000") == _bytes(tmp_path / "alone")


@pytest.mark.multirank
@pytest.mark.faults
def test_one_rank_failing_stops_all_with_one_message(dense, tmp_path):
    """Broken when a rank that meets a bad cloud alone leaves its peers waiting, or each repeats the error."""
    instances = Path(shutil.copytree(dense.instances, tmp_path / "instances"))
    last = dense.directory / "parts" / "0001" / "part.json"
    category, instance = json.loads(last.read_text())["samples"][-1]["fractals"][-1]
    clouds = np.load(instances / f"{category}.npy")
    clouds[instance] = np.inf
    np.save(instances / f"{category}.npy", clouds)
    done = scaffold_on(2, *_command(_study(tmp_path, dense.config), instances, tmp_path / "0001"))
    assert done.returncode == ExitCode.DAMAGED
    assert done.stderr.count("not finite") == 1
    assert (
        f"rank 1 of 2, rendering part 1: {instances / f'{category}.npy'} has a bad instance {instance}" in done.stderr
    )
    assert list((tmp_path / "0001").iterdir()) == []


def _study(folder: Path, config: RunConfig) -> Path:
    path = folder / "study.yaml"
    atomic.write_yaml(path, {"runs": {"small": config.model_dump()}})
    return path


def _command(study: Path, instances: Path, output: Path, part: int = 1) -> list[str]:
    options = {"--config": study, "--part": part, "--instances": instances, "--output": output}
    return ["render", *(str(word) for pair in options.items() for word in pair)]
