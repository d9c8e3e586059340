"""Random numbers that are a pure function of what they are for.

A draw is addressed by a *key* (from the study's seed, a purpose and indices) and a counter, never by
how many draws came before. So the data are the same for any number of ranks, in any order, however
often something is retried, and on any version of NumPy.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
"""Increment of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""


def key(seed: int, purpose: str, *indices: int) -> int:
    """Return the 64-bit key of the stream for ``purpose`` and ``indices`` under ``seed``."""
    text = "/".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def words(stream: int, count: int) -> NDArray[np.uint64]:
    """Return draws 0 .. count-1 of the stream with key ``stream``: SplitMix64 of its counter, (count,)."""
    z = np.uint64(stream) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(stream: int, count: int) -> NDArray[np.float64]:
    """Return ``count`` draws from [0, 1), the top 53 bits of each word, (count,)."""
    return (words(stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(stream: int, count: int) -> NDArray[np.int64]:
    """Return a random order of 0 .. count-1: the stable argsort of the stream's words, (count,)."""
    return np.argsort(words(stream, count), kind="stable")
