"""Scaling over ranks."""

from __future__ import annotations

import pytest

from scaffold.reporting.fom import figure_of_merit
from scaffold.reporting.results import read_training
from scaffold.reporting.scaling import draw_scaling


@pytest.fixture
def figures(training):
    def make(seconds_of, **arguments):
        made = []
        for ranks, seconds in seconds_of.items():
            folders = [
                training(ranks=ranks, seed=seed, epoch_s=s, **arguments).publish() for seed, s in enumerate(seconds, 1)
            ]
            made.append(figure_of_merit([read_training(folder) for folder in folders]))
        return made

    return make


def test_medians_bars_and_ideal_line(figures, tmp_path, drawn):
    made = figures({4: (1.0, 1.2, 1.4), 1: (3.0, 3.3, 3.6), 2: (2.0, 2.1, 2.9)})
    draw_scaling(made, tmp_path / "scaling.svg")
    left, right = drawn[0].axes
    measured, ideal = (
        line for line in left.get_lines() if len(line.get_xdata()) == 3 and line.get_linestyle() != "None"
    )
    by_ranks = sorted(made, key=lambda f: f.ranks)
    times = [f.time_to_target_s.median for f in by_ranks]
    assert measured.get_xdata().tolist() == [1, 2, 4]
    assert measured.get_ydata().tolist() == times
    assert ideal.get_ydata() == pytest.approx([times[0], times[0] / 2, times[0] / 4])
    bars = left.containers[0].lines[2][0].get_segments()
    assert [tuple(bar[:, 1]) for bar in bars] == [
        pytest.approx((f.time_to_target_s.min, f.time_to_target_s.max)) for f in by_ranks
    ]
    ideal = next(line for line in right.get_lines() if line.get_linestyle() == "--")
    rate = by_ranks[0].samples_per_s.median
    assert ideal.get_ydata() == pytest.approx([rate, 2 * rate, 4 * rate])
    assert (tmp_path / "scaling.svg").exists()


def test_runs_without_a_figure_still_show_their_throughput(figures, tmp_path, drawn):
    draw_scaling(figures({1: (2.0,), 2: (1.0,)}, converged=False), tmp_path / "scaling.svg")
    left, right = drawn[0].axes
    assert [text.get_text() for text in left.texts] == ["no run has a figure of merit"]
    assert right.get_lines()


def test_two_runs_have_two_colours(figures, tmp_path, drawn):
    made = figures({1: (2.0,), 2: (1.0,)}, run="a") + figures({1: (4.0,), 2: (3.0,)}, run="b")
    draw_scaling(made, tmp_path / "scaling.svg")
    handles, labels = drawn[0].axes[1].get_legend_handles_labels()
    assert labels == ["a", "b"]
    assert len({handle.lines[0].get_color() for handle in handles}) == 2


def test_one_rank_count_is_a_figure(figures, tmp_path, drawn):
    draw_scaling(figures({2: (2.0, 3.0)}), tmp_path / "scaling.svg")
    assert drawn[0].axes[0].get_xticks().tolist() == [2]
