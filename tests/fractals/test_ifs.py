"""The chaos game, the streaming moments, and the acceptance test."""

from __future__ import annotations

import numpy as np
import pytest
from fractal_reference import exact_moments, reference_cloud, reference_system, reference_verdict, scaling, system

from scaffold import rng
from scaffold.fractals import ifs
from scaffold.fractals.ifs import Verdict

KEY = 0xFEDCBA9876543210
"""Above 2^63, where a signed key would become a float."""


def moments(params: np.ndarray, n: int, key: int) -> np.ndarray | None:
    """Minimum, maximum, mean and squared deviations of a cloud; None for a runaway."""
    summary = np.empty((4, 3))
    return summary if ifs._moments(params, np.uint64(key), n, summary) else None


def verdict(params: np.ndarray, n: int, key: int, normalize: float, threshold: float) -> Verdict:
    """What the search says of one system."""
    return Verdict(ifs._judge(params, np.uint64(key), n, normalize, threshold, np.empty((4, 3))))


def test_points_equal_the_plain_game_bit_for_bit() -> None:
    """A fused or reordered sum, or another draw, would give each machine its own fractals."""
    params = reference_system(15, rng.key(42, "candidate coefficients"))
    cloud = ifs.points(params, 2000, KEY)
    assert cloud.shape == (2000, 3)
    assert cloud.dtype == np.float64
    assert cloud.tobytes() == reference_cloud(params, 2000, KEY).tobytes()
    assert cloud[0].tolist() == [0, 0, 0]
    assert not np.array_equal(cloud, reference_cloud(params, 2000, KEY + 1))


def test_map_choice_is_exact_to_the_probability() -> None:
    """Map 0 is chosen by u < p_0: a rounded comparison would be wrong at p_0 = u and at the next number."""
    draw = 5
    u = rng.uniform(KEY, draw + 1)[draw]

    def choice(probability: float) -> float:
        params = system(scaling(0.0, 1.0, probability), scaling(0.0, 2.0, 1 - probability))
        return ifs.points(params, draw + 2, KEY)[draw + 1, 0]

    assert choice(u) == 2.0
    assert choice(np.nextafter(u, 1.0)) == 1.0
    assert choice(0.0) == 2.0
    assert choice(1.0) == 1.0


def test_a_walk_in_pieces_is_the_same_cloud() -> None:
    """Clouds are written piece by piece: a draw lost or repeated between two would change the data."""
    params = reference_system(15, rng.key(42, "candidate coefficients"))
    walk = ifs.Walk(params, KEY)
    pieces = [np.empty((m, 3), np.float32) for m in (1, 255, 256, 488)]
    for piece in pieces:
        assert walk.fill(piece)
    whole = ifs.points(params, 1000, KEY)
    assert np.concatenate(pieces).tobytes() == whole.astype(np.float32).tobytes()


def test_a_walk_tells_the_piece_that_runs_away() -> None:
    """2^i - 1 exceeds 1e10 first at i = 34; NaN must count as well, although it compares false."""
    doubling = system(scaling(2.0, 1.0), scaling(2.0, 1.0))
    walk = ifs.Walk(doubling, KEY)
    assert walk.fill(np.empty((34, 3)))
    assert not walk.fill(np.empty((1, 3)))
    for axis in range(3):
        not_a_number = system(scaling(0.5, 1.0), scaling(0.5, 1.0))
        not_a_number[:, 3 * axis] = np.nan
        assert not ifs.Walk(not_a_number, KEY).fill(np.empty((2, 3)))


def test_points_keep_runaways() -> None:
    """``points`` has no trap: whoever calls it sees the infinities."""
    cloud = ifs.points(system(scaling(2.0, 1.0), scaling(2.0, 1.0)), 2000, KEY)
    assert cloud[35].tolist() == [2.0**35 - 1] * 3
    assert not np.isfinite(cloud[-1]).any()


@pytest.mark.parametrize("n", [1, 255, 256, 257, 3000])
def test_moments_equal_exact_sums(n: int) -> None:
    """Chan's rule with a wrong weight or block end would be off by far more; so would ddof = 1."""
    params = reference_system(15, rng.key(42, "candidate coefficients"))
    cloud = ifs.points(params, n, KEY)
    summary = moments(params, n, KEY)
    mean, squares = exact_moments(cloud)
    assert summary is not None
    np.testing.assert_array_equal(summary[0], cloud.min(0))
    np.testing.assert_array_equal(summary[1], cloud.max(0))
    np.testing.assert_allclose(summary[2], mean, rtol=1e-13)
    np.testing.assert_allclose(summary[3], squares, rtol=1e-13)
    if n > 1:
        assert not np.allclose(squares * n / (n - 1), squares, rtol=1e-13)


def test_moments_of_a_cloud_far_from_the_origin() -> None:
    """The textbook sum x^2 - (sum x)^2 / n cancels when the mean is far above the spread; ours must not."""
    # All points but the first lie in 1e6 +- 1.
    near, far = scaling(0.25, 0.75e6 - 0.75), scaling(0.25, 0.75e6 + 0.75)
    params, n = system(near, far), 20_000
    cloud = ifs.points(params, n, KEY)
    summary = moments(params, n, KEY)
    squares = exact_moments(cloud)[1]
    assert summary is not None
    np.testing.assert_allclose(summary[3], squares, rtol=1e-13)
    naive = np.cumsum(cloud**2, 0)[-1] - np.cumsum(cloud, 0)[-1] ** 2 / n
    assert not np.allclose(naive, squares, rtol=1e-13)


@pytest.mark.parametrize("last", [34, 255, 256, 300])
def test_a_runaway_counts_only_within_the_cloud(last: int) -> None:
    """Early exit must be exact: a cloud that ends one point before it leaves 1e10 is no runaway."""
    step = 1e10 / (last - 0.5)
    climbing = system(scaling(1.0, step), scaling(1.0, step))
    assert verdict(climbing, last, KEY, 1.0, 0.15) is Verdict.ACCEPTED
    assert verdict(climbing, last + 1, KEY, 1.0, 0.15) is Verdict.RUNAWAY


def test_flat_clouds_are_refused() -> None:
    """A cloud without extent along one axis would divide by zero; one point has no extent at all."""
    params = reference_system(15, rng.key(42, "candidate coefficients"))
    assert verdict(params, 500, KEY, 1.0, 0.0) is Verdict.ACCEPTED
    assert verdict(params, 1, KEY, 1.0, 0.0) is Verdict.FLAT
    params[:, 6:9] = params[:, 11] = 0
    assert verdict(params, 500, KEY, 1.0, 0.0) is Verdict.FLAT


def test_every_axis_must_pass_the_threshold() -> None:
    """Variance is the population's, per axis, after normalising to half width ``normalize``, and > threshold."""
    params = reference_system(15, rng.key(42, "candidate coefficients"))
    cloud = ifs.points(params, 512, KEY)
    least = (cloud / (cloud.max(0) - cloud.min(0)) * 2 * 1.5).var(0).min()
    assert verdict(params, 512, KEY, 1.5, least * (1 - 1e-9)) is Verdict.ACCEPTED
    assert verdict(params, 512, KEY, 1.5, least * (1 + 1e-9)) is Verdict.LOW_VARIANCE


def test_random_systems_equal_the_plain_formula() -> None:
    """Coefficients bit for bit; probabilities to rounding of the determinant."""
    stream = rng.key(42, "candidate coefficients")
    for candidate in (0, 1, 1000):
        found, expected = ifs.random_system(candidate, stream), reference_system(candidate, stream)
        np.testing.assert_array_equal(found[:, :12], expected[:, :12])
        np.testing.assert_allclose(found[:, 12], expected[:, 12], rtol=1e-12)
        assert not np.allclose(found[::-1, 12], expected[:, 12], rtol=1e-12)


def test_a_batch_of_candidates_equals_the_plain_search() -> None:
    """What the search accepts is what the specification's formula accepts, and for the reason counted."""
    coefficients, clouds, n, first = KEY, 77, 128, 5
    verdicts = np.empty(200, np.int8)
    ifs.examine(first, verdicts, coefficients, clouds, n, 1.0, 0.1)
    keys = rng.words(clouds, first + len(verdicts)).tolist()
    expected = [
        reference_verdict(reference_cloud(ifs.random_system(k, coefficients), n, keys[k]), 1.0, 0.1)
        for k in range(first, first + len(verdicts))
    ]
    assert [Verdict(v).name for v in verdicts] == expected
    assert {"ACCEPTED", "RUNAWAY", "LOW_VARIANCE"} <= set(expected)


def test_systems_without_volume_are_degenerate() -> None:
    """Two determinants of zero leave no probabilities: 0 / 0 must not become a map choice."""
    params = np.zeros((2, 13))
    assert not ifs._set_probabilities(params)
    assert params[:, 12].tolist() == [0, 0]
    params[1, [0, 4, 8]] = 0.5
    assert ifs._set_probabilities(params)
    assert params[:, 12].tolist() == [0, 1]


def test_acceptance_rates_are_those_measured_elsewhere() -> None:
    """Of 512,000 candidates (8192 points) 40.3 % ran away and 3.01 % passed; 7.2 % would pass at 0.10."""
    verdicts = np.empty(4000, np.int8)
    ifs.examine(0, verdicts, 1, 2, 8192, 1.0, 0.15)
    rates = np.bincount(verdicts, minlength=6) / len(verdicts)

    def agrees(rate: float, expected: float) -> bool:
        return abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / len(verdicts))

    assert agrees(rates[Verdict.RUNAWAY], 0.403)
    assert agrees(rates[Verdict.ACCEPTED], 0.0301)
    assert not agrees(rates[Verdict.ACCEPTED], 0.072)
