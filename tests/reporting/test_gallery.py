"""The gallery of validation slices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from scaffold.reporting import gallery
from scaffold.reporting.results import read_predictions, read_result


def test_error_map_tells_the_four_cases_apart():
    truth = np.array([[0, 1, 1, 0, 2]], np.int16)
    prediction = np.array([[0, 1, 0, 2, 1]], np.int16)
    expected = [[0, gallery.CORRECT, gallery.MISSED, gallery.FALSE, gallery.CONFUSED]]
    assert gallery.error_map(truth, prediction).tolist() == expected


def test_reduction_keeps_a_lone_voxel():
    """Showing every n-th pixel of a large slice loses most of a fractal; the control does."""
    plane = np.zeros((1030, 1030), np.int16)
    plane[1028, 1028] = 3
    plane[7, 500] = 2
    small = gallery.reduce(plane)
    assert max(small.shape) <= 512
    assert small[7 // 3, 500 // 3] == 2
    assert small[1028 // 3, 1028 // 3] == 3
    assert plane[::3, ::3].max() == 0
    assert np.array_equal(gallery.reduce(plane[:512, :512]), plane[:512, :512])


def test_colour_and_name_belong_to_the_category(training, tmp_path, drawn):
    """Hazard 28: the class label off by one: label k + 1 is category k."""
    made = training()
    made.predictions["truth"][:] = 0
    made.predictions["truth"][:, 4, 5] = 2
    made.predictions["prediction"] = made.predictions["truth"].copy()
    directory = made.publish()
    gallery.draw_gallery(read_predictions(directory / "predictions.npz"), read_result(directory), tmp_path / "g.png")
    truth = drawn[0].axes[-3]
    legend = truth.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["category 1"]
    pixels = truth.images[0].get_array()
    assert tuple(pixels[4, 5]) == to_rgb(legend.get_patches()[0].get_facecolor())
    assert tuple(pixels[0, 0]) == (0, 0, 0)


def test_rows_and_columns(training, tmp_path, drawn):
    directory = training().publish()
    predictions = read_predictions(directory / "predictions.npz")
    gallery.draw_gallery(predictions, read_result(directory), tmp_path / "g.png")
    axes = drawn[0].axes
    assert len(axes) == 12
    assert [panel.get_title(loc="center") for panel in axes[:4]] == ["image", "truth", "prediction", "errors"]
    assert axes[4].get_ylabel() == "sample 11\nplane 16\nvolume's Dice\n0.940"
    for i in range(3):
        # Channels first in the file, last in a picture.
        shown = axes[4 * i].images[0].get_array()
        assert np.array_equal(shown, predictions.image[i].transpose(1, 2, 0))
        assert np.array_equal(
            axes[4 * i + 2].images[0].get_array(), gallery.label_colours(4)[predictions.prediction[i]]
        )
    assert Image.open(tmp_path / "g.png").info["dpi"][0] >= 150


def test_neighbouring_labels_differ_in_colour():
    colours = gallery.label_colours(40)
    assert len({tuple(colour) for colour in colours[:9]}) == 9
    assert all(tuple(a) != tuple(b) for a, b in itertools.pairwise(colours))


def test_many_categories_do_not_crowd_the_legend(training, tmp_path, drawn):
    directory = training(n_categories=60, n_instances_used_per_fractal=3).publish()
    predictions = read_predictions(directory / "predictions.npz")
    assert predictions.truth.max() > 10
    gallery.draw_gallery(predictions, read_result(directory), tmp_path / "g.png")
    assert len(drawn[0].axes[-3].get_legend().get_texts()) == 6


@pytest.mark.parametrize("n", [1, 4])
def test_any_number_of_slices(training, tmp_path, drawn, n):
    made = training()
    made.predictions = {
        name: array if name == "palette" else np.concatenate([array, array])[:n]
        for name, array in made.predictions.items()
    }
    directory = made.publish()
    gallery.draw_gallery(read_predictions(directory / "predictions.npz"), read_result(directory), tmp_path / "g.png")
    assert len(drawn[0].axes) == 4 * n
