"""verify finds each byte that has changed and names its file and sample."""

from __future__ import annotations

import os

import pytest
from small_datasets import flip

from scaffold.arrays import ArrayFile
from scaffold.dataset.verify import verify
from scaffold.errors import DamagedFileError


@pytest.mark.parametrize("threads", [1, 2])
def test_sound_data_set_passes(made, threads):
    """Broken when an untouched data set is called damaged."""
    assert verify(made.directory, threads) == []


def test_flipped_bit_of_a_mask(made, copied):
    """Broken when one altered mask voxel is overlooked, or blamed on another sample."""
    masks = made.meta.layout.masks(copied(made) / "parts" / "0001", 1)
    flip(masks.path, masks.offset(5, 3, 2, 1))
    (finding,) = verify(masks.path.parents[2])
    assert (finding.path, finding.sample) == (masks.path, 69)
    assert "mask's bytes were altered" in finding.problem


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("index", [(0, 0, 0, 0, 0), (15, 2, 15, 15, 15), (4, 1, 9, 0, 0)])
def test_flipped_bit_of_an_image(dense, copied, index, bit):
    """Broken when one altered bit of an image is overlooked: even the sign of a zero, or its last bit."""
    images = dense.meta.layout.images(copied(dense) / "parts" / "0001", 1)
    flip(images.path, images.offset(*index) + (3 if bit == 7 else 0), bit)
    (finding,) = verify(images.path.parents[2])
    assert (finding.path, finding.sample) == (images.path, 64 + index[0])
    assert f"channel {index[1]}, plane {index[2]}" in finding.problem


@pytest.mark.parametrize("name", ["images.npy", "masks.npy", "part.json"])
def test_deleted_file(dense, copied, name):
    """Broken when a file that is not there is passed over."""
    path = copied(dense) / "parts" / "0000" / name
    path.unlink()
    (finding,) = verify(path.parents[2])
    assert (finding.path, finding.sample, finding.problem) == (path, None, "is missing")


@pytest.mark.parametrize("name", ["images.npy", "masks.npy"])
def test_truncated_file(dense, copied, name):
    """Broken when the end of a file may be missing."""
    path = copied(dense) / "parts" / "0001" / name
    os.truncate(path, path.stat().st_size - 1)
    (finding,) = verify(path.parents[2])
    assert finding.path == path
    assert "truncated" in finding.problem


def test_altered_header(made, copied):
    """Broken when bytes before the first sample are not looked at."""
    path = copied(made) / "parts" / "0000" / "masks.npy"
    flip(path, 4000)
    (finding,) = verify(path.parents[2])
    assert finding.path == path


def test_swapped_parts_are_not_each_other(dense, copied):
    """Broken when a part passes for another one with equally long files."""
    directory = copied(dense)
    text = (directory / "parts" / "0001" / "part.json").read_text()
    (directory / "parts" / "0001" / "part.json").write_text(text.replace('"id": 64', '"id": 0'))
    (finding,) = verify(directory)
    assert "another data set" in finding.problem


def test_index_that_disagrees_with_meta(made, copied):
    """Broken when part.json may claim other digests than the data set was published with."""
    directory = copied(made)
    index = directory / "parts" / "0001" / "part.json"
    digest = made.meta.sample_digests[70]
    index.write_text(index.read_text().replace(digest, "0" * 64))
    (finding,) = verify(directory)
    assert (finding.path, finding.sample) == (index, 70)


@pytest.mark.parametrize("name", ["masks.npy", "images.npy"])
def test_file_that_shrinks_meanwhile(dense, copied, monkeypatch, name):
    """Broken when bytes that were not read pass for zeros, which most of a sample is."""
    path = copied(dense) / "parts" / "0001" / name
    os.truncate(path, path.stat().st_size - 4)
    monkeypatch.setattr(ArrayFile, "size_problem", lambda file: None)
    (finding,) = verify(path.parents[2])
    assert (finding.path, finding.sample) == (path, 79)
    assert "shorter" in finding.problem


def test_damaged_meta_stops(made, copied):
    """Broken when the rest is checked against a meta.yaml that cannot be trusted."""
    directory = copied(made)
    (directory / "meta.yaml").write_text("")
    with pytest.raises(DamagedFileError, match=r"meta\.yaml is empty"):
        verify(directory)
