"""Iterated function systems: the chaos game, and the test that makes a random system a category.

A *system* is two affine maps of space, an array ``params`` of shape (2, 13), float64. Row t holds the
matrix A_t (9 entries, row-major), the translation b_t (3) and the probability p_t.

Its *cloud* of n points is the chaos game: point 0 is the origin, and point i+1 = A_t point_i + b_t,
where draw i chooses t. Draw i is word i of the cloud's stream (:mod:`scaffold.rng`), and
u = (word >> 11) / 2^53 chooses map 0 where u < p_0, else map 1. So map 0 has probability p_0 rounded
up to a multiple of 2^-53, and map 1 has the rest.

All sums are written out in one order, and nothing is fused or reordered (:mod:`scaffold.compiled`):
a cloud has the same bits on every machine.

Public functions first, then the compiled ones; they share this file for the sake of numba's cache.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from scaffold import rng
from scaffold.compiled import compiled

LIMIT = 1e10
"""A cloud with a coordinate beyond this magnitude, or not finite, is a *runaway*."""

MAPS, COEFFICIENTS = 2, 12
PARAMETERS = COEFFICIENTS + 1

_BLOCK = 256
"""Points per block of the streaming moments; part of what defines their rounding."""

_GAMMA = np.uint64(rng.GAMMA)
_ONE = np.uint64(1)
_UNIT = 2.0**-53


class Verdict(IntEnum):
    """What became of a candidate."""

    ACCEPTED = 0
    DEGENERATE = 1
    """Both determinants are 0: the maps have no probabilities."""
    RUNAWAY = 2
    """A coordinate went beyond :data:`LIMIT`."""
    FLAT = 3
    """All points agree on some axis."""
    LOW_VARIANCE = 4
    """Too small a variance of the normalised cloud along some axis."""
    DUPLICATE = 5
    """Equal to a category accepted before."""


class Walk:
    """A cloud made piece by piece, in constant memory.

    The game is sequential: a point needs its predecessor. So one cloud is the work of one thread, and
    parallelism is over clouds.

    Args:
        params: (2, 13) float64.
        key: key of the cloud's stream, 0 <= key < 2^64.
    """

    def __init__(self, params: NDArray[np.float64], key: int) -> None:
        self._params = np.ascontiguousarray(params, np.float64)
        self._key = np.uint64(key)
        self._position = np.zeros(3)
        self._done = 0

    def fill(self, out: NDArray[np.floating]) -> bool:
        """Write the cloud's next points into ``out``, (m, 3) float64 or float32.

        Returns:
            Whether all of them are within :data:`LIMIT`, hence finite.
        """
        bounded = _walk(self._params, self._key, self._done, self._position, out)
        self._done += len(out)
        return bounded


def points(params: NDArray[np.float64], n: int, key: int) -> NDArray[np.float64]:
    """Return the first ``n`` points of a cloud, every one kept, runaways included.

    Args:
        params: (2, 13) float64.
        n: number of points.
        key: key of the cloud's stream, 0 <= key < 2^64.

    Returns:
        (n, 3) float64.
    """
    cloud = np.empty((n, 3))
    Walk(params, key).fill(cloud)
    return cloud


def random_system(candidate: int, coefficients: int) -> NDArray[np.float64]:
    """Return a random system: coefficients from U[-1, 1), probabilities |det A_t| / sum |det A|.

    Args:
        candidate: its number; its 24 coefficients, map by map, are words 24 * candidate and following.
        coefficients: key of the stream of coefficients.

    Returns:
        (2, 13) float64; both probabilities are 0 when both determinants are.
    """
    params = np.empty((MAPS, PARAMETERS))
    _draw(candidate, np.uint64(coefficients), params)
    return params


def examine(
    first: int,
    verdicts: NDArray[np.int8],
    coefficients: int,
    clouds: int,
    n: int,
    normalize: float,
    threshold: float,
) -> None:
    """Judge the candidates ``first``, ``first`` + 1, ...: fill ``verdicts``, (m,), with :class:`Verdict`.

    A system is a category, if no coordinate of its cloud of ``n`` points leaves :data:`LIMIT`, each axis has a
    positive range, and the population variance of (x - mean) * 2 * normalize / range exceeds ``threshold``
    on every axis.

    The game stops at the first block with a runaway, which is exact: no later point takes it back. No
    other exit is taken. To judge by a prefix of the cloud is a guess, since the points still to come may
    all lie at the ends of the range, which puts the variance above the threshold. Only when less than the
    share threshold / normalize^2 of the points (15 % by default) is left can they not, so an exact exit
    could save no more than that share of the time.

    Args:
        first: number of the first candidate.
        verdicts: to be filled; its length says how many candidates.
        coefficients: key of the stream of coefficients, see :func:`random_system`.
        clouds: key of a stream whose word k is the key of candidate k's cloud.
        n: points of a cloud.
        normalize: half width of the cloud, along each axis, for the test of variance.
        threshold: what the variance must exceed.
    """
    _examine(first, np.uint64(coefficients), np.uint64(clouds), n, normalize, threshold, verdicts)


@compiled
def _mix(z: np.uint64) -> np.uint64:
    """Return SplitMix64's output for the state ``z``, as :func:`scaffold.rng.words`."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def _word(stream: np.uint64, index: np.uint64) -> np.uint64:
    return _mix(stream + (index + _ONE) * _GAMMA)


@compiled
def _map_bound(probability: float) -> np.uint64:
    """Return how many of the 2^53 values of word >> 11, the lowest, choose map 0."""
    return np.uint64(np.ceil(probability * 2.0**53))


@compiled
def _step(
    params: NDArray[np.float64], bound: np.uint64, word: np.uint64, x: float, y: float, z: float
) -> tuple[float, float, float]:
    # An index instead of a branch: the choice is random, and half of all branches would be mispredicted.
    t = np.uint64((word >> np.uint64(11)) >= bound)
    # Sums of two pairs: the chain from point to point is one addition shorter than left to right.
    return (
        (params[t, 0] * x + params[t, 1] * y) + (params[t, 2] * z + params[t, 9]),
        (params[t, 3] * x + params[t, 4] * y) + (params[t, 5] * z + params[t, 10]),
        (params[t, 6] * x + params[t, 7] * y) + (params[t, 8] * z + params[t, 11]),
    )


@compiled
def _walk(
    params: NDArray[np.float64],
    stream: np.uint64,
    first: int,
    position: NDArray[np.float64],
    out: NDArray[np.floating],
) -> bool:
    bound = _map_bound(params[0, 12])
    counter = stream + np.uint64(first) * _GAMMA
    x, y, z = position[0], position[1], position[2]
    bounded = True
    for i in range(out.shape[0]):
        out[i, 0] = x
        out[i, 1] = y
        out[i, 2] = z
        bounded &= (abs(x) <= LIMIT) & (abs(y) <= LIMIT) & (abs(z) <= LIMIT)
        counter += _GAMMA
        x, y, z = _step(params, bound, _mix(counter), x, y, z)
    position[0], position[1], position[2] = x, y, z
    return bounded


@compiled
def _merge(
    mean: float, squares: float, count: int, origin: float, total: float, total_squares: float, size: int
) -> tuple[float, float]:
    """Merge a block into (mean, sum of squared deviations) of ``count`` points (Chan, Golub, LeVeque 1979).

    The block has ``size`` points, whose deviations from ``origin`` sum to ``total`` and squared to ``total_squares``.
    """
    difference = (origin + total / size) - mean
    share = size / (count + size)
    within = total_squares - total * total / size
    return mean + difference * share, squares + (within + difference * difference * count * share)


@compiled
def _moments(params: NDArray[np.float64], stream: np.uint64, n: int, summary: NDArray[np.float64]) -> bool:
    """Fill what the acceptance test needs of a cloud, without storing it; return False for a runaway.

    One pass: sums of deviations from the first point of each block of 256 points, blocks merged in
    order by Chan's rule. Deviations are taken from a point of the cloud itself, so that nothing cancels
    however far the cloud lies from the origin, and rounding grows with 256 + n / 256, not with n.

    Args:
        params: (2, 13) float64.
        stream: key of the cloud's stream.
        n: points of the cloud.
        summary: (4, 3) float64: minimum, maximum, mean, and sum of squared deviations from the mean, by axis.
    """
    bound = _map_bound(params[0, 12])
    counter = stream
    x, y, z = 0.0, 0.0, 0.0
    low_x, low_y, low_z = np.inf, np.inf, np.inf
    high_x, high_y, high_z = -np.inf, -np.inf, -np.inf
    mean_x, mean_y, mean_z = 0.0, 0.0, 0.0
    squares_x, squares_y, squares_z = 0.0, 0.0, 0.0
    done = 0
    while done < n:
        size = min(_BLOCK, n - done)
        x0, y0, z0 = x, y, z
        sum_x, sum_y, sum_z = 0.0, 0.0, 0.0
        sum_xx, sum_yy, sum_zz = 0.0, 0.0, 0.0
        bounded = True
        for _ in range(size):
            bounded &= (abs(x) <= LIMIT) & (abs(y) <= LIMIT) & (abs(z) <= LIMIT)
            low_x, high_x = min(low_x, x), max(high_x, x)
            low_y, high_y = min(low_y, y), max(high_y, y)
            low_z, high_z = min(low_z, z), max(high_z, z)
            dx, dy, dz = x - x0, y - y0, z - z0
            sum_x += dx
            sum_y += dy
            sum_z += dz
            sum_xx += dx * dx
            sum_yy += dy * dy
            sum_zz += dz * dz
            counter += _GAMMA
            x, y, z = _step(params, bound, _mix(counter), x, y, z)
        if not bounded:
            return False
        mean_x, squares_x = _merge(mean_x, squares_x, done, x0, sum_x, sum_xx, size)
        mean_y, squares_y = _merge(mean_y, squares_y, done, y0, sum_y, sum_yy, size)
        mean_z, squares_z = _merge(mean_z, squares_z, done, z0, sum_z, sum_zz, size)
        done += size
    summary[0] = low_x, low_y, low_z
    summary[1] = high_x, high_y, high_z
    summary[2] = mean_x, mean_y, mean_z
    summary[3] = squares_x, squares_y, squares_z
    return True


@compiled
def _judge(
    params: NDArray[np.float64],
    stream: np.uint64,
    n: int,
    normalize: float,
    threshold: float,
    summary: NDArray[np.float64],
) -> Verdict:
    if not _moments(params, stream, n, summary):
        return Verdict.RUNAWAY
    for axis in range(3):
        if not summary[1, axis] - summary[0, axis] > 0.0:
            return Verdict.FLAT
    for axis in range(3):
        scale = 2.0 * normalize / (summary[1, axis] - summary[0, axis])
        if not summary[3, axis] / n * scale * scale > threshold:
            return Verdict.LOW_VARIANCE
    return Verdict.ACCEPTED


@compiled
def _set_probabilities(params: NDArray[np.float64]) -> bool:
    for t in range(MAPS):
        a = params[t]
        params[t, 12] = abs(
            a[0] * (a[4] * a[8] - a[5] * a[7]) - a[1] * (a[3] * a[8] - a[5] * a[6]) + a[2] * (a[3] * a[7] - a[4] * a[6])
        )
    total = params[0, 12] + params[1, 12]
    if not total > 0.0:
        return False
    params[0, 12] /= total
    params[1, 12] /= total
    return True


@compiled
def _draw(candidate: int, stream: np.uint64, params: NDArray[np.float64]) -> bool:
    index = np.uint64(candidate) * np.uint64(MAPS * COEFFICIENTS)
    for t in range(MAPS):
        for j in range(COEFFICIENTS):
            params[t, j] = 2.0 * ((_word(stream, index) >> np.uint64(11)) * _UNIT) - 1.0
            index += _ONE
    return _set_probabilities(params)


@compiled
def _examine(
    first: int,
    coefficients: np.uint64,
    clouds: np.uint64,
    n: int,
    normalize: float,
    threshold: float,
    verdicts: NDArray[np.int8],
) -> None:
    params = np.empty((MAPS, PARAMETERS))
    summary = np.empty((4, 3))
    for i in range(len(verdicts)):
        candidate = first + i
        if _draw(candidate, coefficients, params):
            stream = _word(clouds, np.uint64(candidate))
            verdicts[i] = _judge(params, stream, n, normalize, threshold, summary)
        else:
            verdicts[i] = Verdict.DEGENERATE
