"""Counter-based random numbers."""

from __future__ import annotations

import numpy as np

from scaffold import rng


def test_words_are_splitmix64() -> None:
    """A change of the generator changes every library: these are the published first outputs for two seeds."""
    assert rng.words(0, 1).tolist() == [0xE220A8397B1DCDAF]
    assert rng.words(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]


def test_keys_of_different_purposes_differ() -> None:
    """Streams that share a key would make clouds and coefficients depend on each other."""
    keys = [rng.key(1, "a", 2), rng.key(1, "a", 2, 0), rng.key(1, "b", 2), rng.key(2, "a", 2), rng.key(1, "a", 21)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


def test_uniform_fills_the_half_open_unit_interval() -> None:
    """A biased or closed interval would bias map choice: mean 1/2 within 4 sigma, control at 8 sigma off."""
    draws = rng.uniform(rng.key(3, "test"), 100_000)
    sigma = np.sqrt(1 / 12 / len(draws))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 * sigma < abs(draws.mean() + 8 * sigma - 0.5)


def test_permutation_holds_everyone_once() -> None:
    """A lost or doubled item would lose a sample."""
    order = rng.permutation(5, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))
