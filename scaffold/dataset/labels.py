"""What follows from the labels of a mask: digests, voxel counts and colours.

The image of a sample is its mask seen through the palette and holds nothing else. So the digest of
the mask stands for the whole sample, and an image is checked against its mask byte for byte, which
is exact and several times faster than hashing 12 bytes a voxel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scaffold.compiled import compiled


def plane_digests(mask: NDArray[np.unsignedinteger]) -> list[bytes]:
    """Return the SHA-256 of each depth plane's bytes; ``mask`` is (planes, H, W), contiguous."""
    return [hashlib.sha256(plane).digest() for plane in mask]


def sample_digest(planes: Iterable[bytes]) -> str:
    """Return the digest of a sample: the SHA-256, in hex, of the digests of all its planes in order.

    Made of planes so that a sample which several ranks render in slabs has the digest that one rank
    would give it, whatever the slabs.
    """
    return hashlib.sha256(b"".join(planes)).hexdigest()


def count(mask: NDArray[np.unsignedinteger], n_classes: int) -> NDArray[np.int64]:
    """Return how many voxels of ``mask`` have each label, (n_classes,).

    Raises:
        ValueError: a label is ``n_classes`` or more.
    """
    counts = np.zeros(n_classes, dtype=np.int64)
    if not _count(mask.reshape(-1), counts):
        raise ValueError(f"has label {mask.max()}, which is above {n_classes - 1}")
    return counts


def colour(mask: NDArray[np.unsignedinteger], channel: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Fill ``out`` with one channel of the image of ``mask``; both contiguous, of equal size.

    Args:
        mask: labels, all below ``len(channel)``: they are not checked.
        channel: that channel of the palette, (n_classes,) float32, contiguous.
        out: what is filled, float32.
    """
    _colour(mask.reshape(-1), channel, out.reshape(-1))


@compiled
def _count(labels: NDArray[np.unsignedinteger], counts: NDArray[np.int64]) -> bool:
    for i in range(labels.size):
        if labels[i] >= counts.size:
            return False
        counts[labels[i]] += 1
    return True


@compiled
def _colour(labels: NDArray[np.unsignedinteger], channel: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(labels.size):
        out[i] = channel[labels[i]]
