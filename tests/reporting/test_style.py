"""How figures are saved."""

from __future__ import annotations

import pytest
from matplotlib._pylab_helpers import Gcf

from scaffold.reporting import curves, gallery, style
from scaffold.reporting.results import read_predictions, read_result, read_stats


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_equal_data_give_equal_bytes(tmp_path, kind):
    """A time stamp or a random id in the file would change a committed figure that nobody changed."""
    for name, ceiling in (("a", 1), ("b", 1), ("c", 2)):
        with style.figure(tmp_path / f"{name}.{kind}", "title", "subtitle", (3, 2)) as drawing:
            drawing.subplots().plot([0, ceiling])
    a, b, c = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_failure_while_drawing_leaves_the_old_figure(tmp_path):
    """A figure that fails fails its job; the figure of the last run must not be half overwritten."""
    path = tmp_path / "loss.svg"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), style.figure(path, "title", "", (3, 2)) as drawing:
        drawing.subplots().plot([1 / 0])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_figure_is_left_open(training, tmp_path):
    """Hazard 28: a figure kept in pyplot's list after saving grows the process with every plot."""
    from matplotlib import pyplot

    directory = training().publish()
    result = read_result(directory)
    stats = read_stats(directory / "train_stats.csv")
    for draw in (curves.draw_loss, curves.draw_dice, curves.draw_time):
        draw(stats, result, tmp_path / "figures" / "x.svg")
    gallery.draw_gallery(read_predictions(directory / "predictions.npz"), result, tmp_path / "figures" / "x.png")
    assert Gcf.get_num_fig_managers() == 0
    # The control: this is where pyplot would keep one.
    pyplot.figure()
    assert Gcf.get_num_fig_managers() == 1
    pyplot.close("all")


def test_style_does_not_leak(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with style.figure(tmp_path / "a.png", "title", "", (2, 2)):
        assert mpl.rcParams["svg.hashsalt"] == "scaffold"
    assert dict(mpl.rcParams) == before


def test_heading_says_what_was_measured(training, tmp_path, drawn):
    directory = training(ranks=2, seed=7).publish()
    curves.draw_loss(read_stats(directory / "train_stats.csv"), read_result(directory), tmp_path / "loss.svg")
    title, conditions = (text.get_text() for text in drawn[0].texts)
    assert title == "Loss · tiny, 2 ranks, seed 7"
    assert conditions == (
        "32³ voxels · 3 categories · U-Net of 2 levels, 90,302 parameters · 2 ranks · Example CPU 9000"
    )
