"""The categories in 3-D."""

from __future__ import annotations

import numpy as np
import pytest

from scaffold.errors import DamagedFileError
from scaffold.reporting import clouds


def play(category, choices):
    """The chaos game, spelled out."""
    point = np.zeros(3)
    points = [point]
    for t in choices:
        point = category[t, :9].reshape(3, 3) @ point + category[t, 9:12]
        points.append(point)
    return np.array(points, np.float32)


@pytest.fixture
def category():
    rng = np.random.default_rng(5)
    maps = rng.uniform(-0.6, 0.6, (2, 12))
    return np.hstack([maps, [[0.5], [0.5]]])


def test_map_of_each_point_is_found(category):
    choices = np.random.default_rng(1).integers(0, 2, 3000)
    found = clouds.maps_used(play(category, choices), category)
    assert found[0] == 0
    assert np.array_equal(found[1:], choices)
    # The control: with the maps exchanged every answer turns.
    assert not np.any(clouds.maps_used(play(category, choices), category[::-1])[1:] == choices)


def test_scales_are_equal(category, tmp_path, drawn):
    """Unequal axes would show a flat fractal as a round one."""
    flat = category.copy()
    flat[:, 6:9] *= 0.05
    flat[:, 11] *= 0.05
    points = play(flat, np.random.default_rng(1).integers(0, 2, 500))
    clouds.draw_categories([points], flat[None], tmp_path / "c.png", "lib")
    axes = drawn[0].axes[0]
    extents = [high - low for low, high in (axes.get_xlim(), axes.get_ylim(), axes.get_zlim())]
    assert extents == pytest.approx([extents[0]] * 3)
    assert extents[0] == pytest.approx(np.ptp(points, axis=0).max())
    assert np.ptp(points[:, 2]) < 0.2 * extents[0]


def test_a_sheet_of_many_says_what_it_leaves_out(category, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(clouds, "_SHOWN", 2)
    points = play(category, [0, 1, 1, 0, 1])
    clouds.draw_categories([points] * 3, np.array([category] * 3), tmp_path / "c.png", "lib")
    assert len(drawn[0].axes) == 2
    assert [text.get_text() for text in drawn[0].texts][:2] == [
        "3 categories",
        "lib · the first 2 of 3 · colour: the map that each point is an image under",
    ]


def test_reads_only_the_first_points_of_the_unweighted_instance(tmp_path):
    path = tmp_path / "0.npy"
    instances = np.arange(3 * 25_000 * 3, dtype=np.float32).reshape(3, 25_000, 3)
    np.save(path, instances)
    assert np.array_equal(clouds.read_cloud(path), instances[0, :20_000])
    np.save(path, instances[:, :100])
    assert clouds.read_cloud(path).shape == (100, 3)


@pytest.mark.parametrize("kept", [0, 50, 200, -1])
def test_truncated_instances_are_named(tmp_path, kept):
    path = tmp_path / "0.npy"
    np.save(path, np.zeros((2, 100, 3), np.float32))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DamagedFileError, match=r"0\.npy cannot be read.*snakemake"):
        clouds.read_cloud(path)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 9, 2), np.float32),
        np.zeros((9, 3), np.float32),
        np.zeros((2, 9, 3)),
        np.full((2, 9, 3), np.nan, "f4"),
    ],
    ids=["2-D points", "one cloud", "float64", "NaN"],
)
def test_wrong_arrays_are_refused(tmp_path, array):
    np.save(tmp_path / "0.npy", array)
    with pytest.raises(DamagedFileError):
        clouds.read_cloud(tmp_path / "0.npy")
