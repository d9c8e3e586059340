"""Training reads exactly the bytes that were made, and no more of them than it asked for."""

from __future__ import annotations

import os
import pickle
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from small_datasets import flip

from scaffold.dataset import reader
from scaffold.dataset.reader import Samples, colour
from scaffold.errors import DamagedFileError, UserError

CUTS = [(0, 5), (5, 6), (6, 16)]
"""Uneven thirds of 16 planes, one of a single plane."""


def _open(made, split="training", block=None):
    return Samples(made.directory / "meta.yaml", split, block)


def _stored(made, sample, name):
    part, row = divmod(sample, 64)
    return np.load(made.directory / "parts" / f"{part:04d}" / name)[row]


@pytest.mark.parametrize(("split", "count"), [("training", 56), ("validation", 24)])
def test_items_are_the_stored_samples(made, split, count):
    """Broken when an item is another sample, of another type, or not contiguous."""
    samples = _open(made, split)
    dense = made.config.storage.image == "dense"
    assert len(samples) == count
    for index in range(count):
        item = samples[index]
        mask = _stored(made, samples.sample_id(index), "masks.npy")
        assert item["mask"].dtype == (torch.int16 if dense else torch.uint8)
        assert np.array_equal(item["mask"].numpy(), mask)
        assert set(item) == ({"image", "mask"} if dense else {"mask"})
        assert all(tensor.is_contiguous() for tensor in item.values())
        if dense:
            assert item["image"].dtype == torch.float32
            assert np.array_equal(item["image"].numpy(), _stored(made, samples.sample_id(index), "images.npy"))


def test_splits_share_out_the_samples(made):
    """Hazard 41: broken when an item's sample depends on anything but meta.yaml, or is in both splits."""
    splits = [_open(made, split) for split in ("training", "validation")]
    ids = [[samples.sample_id(index) for index in range(len(samples))] for samples in splits]
    assert sorted(ids[0] + ids[1]) == list(range(80))
    assert all(part == sorted(part) for part in ids)


@pytest.mark.parametrize("depth", CUTS)
@pytest.mark.parametrize("height", [*CUTS, (0, 16)])
@pytest.mark.parametrize("width", [*CUTS, (0, 16)])
def test_blocks_are_slices(made, depth, height, width):
    """Hazard 48: broken when a block of any 3-D cut, even or not, is not that slice of the sample."""
    block = tuple(slice(*bounds) for bounds in (depth, height, width))
    samples = _open(made, "validation", block)
    item = samples[20]
    assert samples.shape == item["mask"].shape
    assert item["mask"].is_contiguous()
    assert np.array_equal(item["mask"].numpy(), _stored(made, samples.sample_id(20), "masks.npy")[block])
    if "image" in item:
        image = _stored(made, samples.sample_id(20), "images.npy")
        assert np.array_equal(item["image"].numpy(), image[(slice(None), *block)])


@pytest.mark.parametrize(
    ("block", "reads", "voxels"),
    [
        ((slice(None),) * 3, 1, 3 * 16**3),
        ((slice(4, 8), slice(None), slice(None)), 3, 3 * 4 * 16 * 16),
        ((slice(4, 8), slice(2, 7), slice(None)), 3 * 4, 3 * 4 * 5 * 16),
        ((slice(4, 8), slice(2, 7), slice(3, 9)), 3 * 4, 3 * 4 * 5 * 16),
    ],
)
def test_only_the_blocks_rows_are_read(dense, monkeypatch, block, reads, voxels):
    """Hazard 47: broken when a rank reads more bytes, or in more pieces, than its block needs."""
    sizes = []

    def counted(descriptor, buffer, offset, real=reader.read_into):
        sizes.append(buffer.nbytes)
        return real(descriptor, buffer, offset)

    samples = _open(dense, block=block)
    monkeypatch.setattr(reader, "read_into", counted)
    samples[0]
    assert len(sizes) == reads + reads // (3 if reads > 1 else 1), "image and mask"
    assert sum(sizes) == voxels * 4 + voxels // 3 * 2


def test_masks_are_read_without_images(dense, copied):
    """Hazard 47: broken when class weights, which need masks alone, read the images, seven eighths of the bytes."""
    directory = copied(dense)
    samples = Samples(directory / "meta.yaml", "training")
    for path in directory.glob("parts/*/images.npy"):
        path.unlink()
    assert torch.equal(samples.mask(3), _open(dense)[3]["mask"])
    with pytest.raises(DamagedFileError, match=r"images\.npy"):
        samples[3]


def test_no_directory_is_listed(made, monkeypatch):
    """Hazards 41, 42 and 45: broken when samples come from a directory's listing, whose order is arbitrary."""

    def listing(*_):
        raise AssertionError("a directory was listed")

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, listing)
    assert _open(made)[0]["mask"].shape == (16, 16, 16)


def test_ranks_can_compare_what_they_read(dense, made, copied):
    """Hazard 42: broken when ranks that see other data or another split do not notice."""
    digests = {_open(dense, split).ids_digest() for split in ("training", "validation")}
    assert len(digests) == 2
    copy = Samples(copied(dense) / "meta.yaml", "training", (slice(0, 2), slice(None), slice(None)))
    assert copy.ids_digest() in digests, "the same data elsewhere, or another block of them, is the same"
    if made.config != dense.config:
        assert _open(made).ids_digest() not in digests


@pytest.mark.parametrize(
    "block",
    [
        (slice(4, 4), slice(None), slice(None)),
        (slice(None), slice(0, 17), slice(None)),
        (slice(None), slice(None), slice(-4, None)),
        (slice(0, 16, 2), slice(None), slice(None)),
    ],
)
def test_impossible_blocks_are_refused(made, block):
    """Hazard 48: broken when an empty block, or one beyond the sample, is silently clipped."""
    with pytest.raises(UserError, match="non-empty run within 0:16"):
        _open(made, block=block)


@pytest.mark.parametrize("name", ["masks.npy", "images.npy"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 5000)])
def test_missing_and_short_files_are_found_at_the_start(dense, copied, name, damage):
    """Broken when a file that lacks is met only hours into the training, or without the way to rebuild it."""
    path = copied(dense) / "parts" / "0001" / name
    damage(path)
    command = re.escape(
        f"snakemake --profile profiles/local --configfile results/study.yaml --force results/copy/parts/0001/{name}"
    )
    with pytest.raises(DamagedFileError, match=command):
        Samples(path.parents[2] / "meta.yaml", "training")


@pytest.mark.parametrize(
    "block", [None, (slice(8, 16), slice(None), slice(None)), (slice(8, 16), slice(8, 16), slice(3))]
)
def test_file_that_shrinks_later_is_found_when_read(made, copied, block):
    """Broken when a short read gives an item with uninitialised memory in it."""
    directory = copied(made)
    samples = Samples(directory / "meta.yaml", "training", block)
    path = directory / "parts" / "0001" / "masks.npy"
    os.truncate(path, path.stat().st_size - 2)
    last = next(index for index in range(len(samples)) if samples.sample_id(index) == max(made.meta.splits.training))
    if samples.sample_id(last) != 79:
        os.truncate(path, made.meta.layout.masks(directory, 1).offset(samples.sample_id(last) - 64, 15, 15, 0))
    with pytest.raises(DamagedFileError, match=r"masks.npy is truncated"):
        samples[last]


@pytest.mark.parametrize("bit", [3, 7])
def test_labels_beyond_the_classes_are_refused(made, copied, bit):
    """Hazard 46: broken when an altered label wraps in int16 or reaches past the class weights on the device."""
    directory = copied(made)
    samples = Samples(directory / "meta.yaml", "training")
    part, row = divmod(samples.sample_id(0), 64)
    masks = made.meta.layout.masks(directory / "parts" / f"{part:04d}", part)
    flip(masks.path, masks.offset(row, 0, 0, 0) + np.dtype(masks.dtype).itemsize - 1, bit)
    with pytest.raises(DamagedFileError, match=rf"has label \d+ in sample {samples.sample_id(0)}, of 6 classes"):
        samples[0]


def test_the_first_label_beyond_the_classes_is_refused(made, copied):
    """The network has no output for it, and the class weights end before it."""
    directory = copied(made)
    samples = Samples(directory / "meta.yaml", "training")
    part, row = divmod(samples.sample_id(0), 64)
    masks = made.meta.layout.masks(directory / "parts" / f"{part:04d}", part)
    for label, refused in ((5, False), (6, True)):
        with open(masks.path, "r+b") as file:
            file.seek(masks.offset(row, 0, 0, 0))
            file.write(np.array(label, masks.dtype).tobytes())
        with pytest.raises(DamagedFileError, match="has label 6 in sample") if refused else nullcontext():
            assert samples.mask(0)[0, 0, 0] == label


def test_loader_processes_read_the_same(made):
    """Broken when the data set cannot be sent to loader processes, or they disturb one another."""
    samples = _open(made)
    assert torch.equal(pickle.loads(pickle.dumps(samples))[1]["mask"], samples[1]["mask"])
    loader = torch.utils.data.DataLoader(samples, batch_size=8, num_workers=2, timeout=60)
    batches = list(loader)
    for name in samples[0]:
        wanted = torch.stack([samples[index][name] for index in range(len(samples))])
        assert torch.equal(torch.cat([batch[name] for batch in batches]), wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_painted_images_are_the_dense_ones(dense, dtype):
    """Broken when `labels` trains on other images than `dense`, by so much as a bit."""
    samples = _open(dense)
    items = [samples[index] for index in range(4)]
    stored = torch.stack([item["image"] for item in items])
    painted = colour(torch.stack([item["mask"] for item in items]).to(dtype), samples.palette)
    assert painted.dtype == torch.float32
    assert torch.equal(painted.view(torch.int32), stored.view(torch.int32))
    assert painted.is_contiguous(memory_format=torch.channels_last_3d)
