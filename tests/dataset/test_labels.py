"""Digests, counts and colours follow from the labels of a mask."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from scaffold.dataset import labels


def _mask() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 4, (5, 6, 7)).astype(np.uint16)


def test_counts_are_those_of_numpy():
    """Broken when a voxel is counted twice, not at all, or for another label."""
    assert labels.count(_mask(), 6).tolist() == np.bincount(_mask().ravel(), minlength=6).tolist()


@pytest.mark.parametrize("label", [4, 65535])
def test_labels_without_a_class_are_refused(label):
    """Hazard 46: broken when a label past the classes, the first one included, is counted beyond the table's end."""
    mask = _mask()
    mask[4, 5, 6] = label
    assert labels.count(mask, label + 1)[label] == 1
    with pytest.raises(ValueError, match=f"has label {label}, which is above 3"):
        labels.count(mask, 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_colours_are_looked_up(dtype):
    """Broken when a voxel gets the colour of another label."""
    channel = np.array([0.0, 0.25, 0.5, 0.75], dtype=np.float32)
    out = np.full((5, 6, 7), np.nan, dtype=np.float32)
    labels.colour(_mask().astype(dtype), channel, out)
    assert np.array_equal(out, channel[_mask()])


def test_digest_is_defined_by_planes_in_order():
    """Broken when the definition changes that other sites' digests were made by, or ignores the order of planes."""
    mask = _mask()
    planes = [hashlib.sha256(mask[z].tobytes()).digest() for z in range(5)]
    assert labels.plane_digests(mask) == planes
    assert labels.sample_digest(planes) == hashlib.sha256(b"".join(planes)).hexdigest()
    assert labels.sample_digest(planes[::-1]) != labels.sample_digest(planes)
