"""Loss, Dice and time over epochs."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from scaffold.reporting import curves
from scaffold.reporting.results import read_result, read_stats


@pytest.fixture
def draw(training, tmp_path, drawn):
    """Draw one kind of figure of a training; return its axes and the statistics."""

    def make(kind, **arguments):
        directory = training(**arguments).publish()
        stats = read_stats(directory / "train_stats.csv")
        path = tmp_path / f"{kind}.svg"
        getattr(curves, f"draw_{kind}")(stats, read_result(directory), path)
        assert ET.parse(path).getroot().tag.endswith("svg")
        return drawn[-1].axes, stats

    return make


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_each_curve_shows_its_own_column(draw):
    """Hazard 28: Dice saved as loss, or training and validation exchanged."""
    (axes,), stats = draw("loss")
    assert axes.get_yscale() == "log"
    assert lines(axes)["training"].get_ydata().tolist() == stats.overall_loss.tolist()
    assert lines(axes)["validation"].get_ydata().tolist() == stats.val_loss_avg.tolist()
    (axes,), stats = draw("dice")
    assert lines(axes)["training (soft)"].get_ydata().tolist() == stats.train_dice.tolist()
    assert lines(axes)["validation (hard)"].get_ydata().tolist() == stats.val_dice.tolist()
    assert lines(axes)["target 0.95"].get_ydata()[0] == 0.95


@pytest.mark.parametrize("kind", ["loss", "dice", "time"])
def test_one_epoch_is_a_figure(draw, kind):
    """Hazard 23: one row has no line, so it needs a dot; and the axis still reads 1."""
    (axes, *_), stats = draw(kind, epochs=1)
    assert all(line.get_marker() == "o" for line in axes.get_lines() if len(line.get_xdata()) == len(stats) == 1)
    assert 1 in axes.get_xticks()
    low, high = axes.get_ylim()
    assert high > low


def test_resumed_epochs_are_marked(draw):
    for kind in ("loss", "dice", "time"):
        axes, _ = draw(kind, resumed_at=(9, 17))
        marks = [line.get_xdata()[0] for line in axes[-1].get_lines() if line.get_linestyle() == ":"]
        assert marks == [8.5, 16.5]
        labels = axes[-1].get_legend_handles_labels()[1]
        assert labels.count("resumed") == 1
    axes, _ = draw("loss", seed=2)
    assert not [line for line in axes[-1].get_lines() if line.get_linestyle() == ":"]


def test_outcome_is_said(draw):
    (axes,), stats = draw("dice")
    told = axes.get_legend().get_title().get_text()
    seconds = stats.epoch_duration.sum() + stats.checkpoint_stall.sum()
    assert told == f"reached 0.9540\nin epoch 25, {seconds:.4g} s"
    (axes,), _ = draw("dice", seed=2, converged=False)
    assert axes.get_legend().get_title().get_text().startswith("ended at 0.70")


def test_breakdown_adds_up_to_the_time_to_target(training):
    """A part counted twice (waiting for data is inside the training time) would draw hours nobody waited."""
    stats = read_stats(training().publish() / "train_stats.csv")
    parts = curves.breakdown(stats)
    total = sum(part.sum() for part in parts.values())
    assert total == pytest.approx(stats.epoch_duration.sum() + stats.checkpoint_stall.sum())
    assert parts["training"].to_numpy() == pytest.approx(0.71 * stats.epoch_duration.to_numpy())


def test_bars_are_stacked_in_order(draw):
    axes, stats = draw("time")
    (axes,) = axes
    tops = np.array([bar.get_y() + bar.get_height() for bar in axes.containers[-1]])
    assert tops == pytest.approx((stats.epoch_duration + stats.checkpoint_stall).to_numpy())
    shares = [label.rpartition("(")[2] for label in axes.get_legend_handles_labels()[1]]
    assert sum(float(share.removesuffix(" %)")) for share in shares) == pytest.approx(100, abs=0.3)


def test_step_time_is_shown_where_it_was_measured(draw):
    axes, stats = draw("time", measured=True)
    assert len(axes) == 2
    assert lines(axes[0])["step"].get_ydata().tolist() == (stats.minibatch_duration * 1e3).tolist()


def test_many_epochs_have_no_dots(draw):
    (axes,), _ = draw("loss", epochs=curves._MARKED + 1)
    assert {line.get_marker() for line in axes.get_lines()} == {"None"}
