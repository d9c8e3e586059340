"""Comparing two figures of merit."""

from __future__ import annotations

import itertools

import pytest

from scaffold.config import keys
from scaffold.errors import UserError
from scaffold.reporting.compare import Ratio, compare, compare_files, verdict
from scaffold.reporting.fom import figure_of_merit
from scaffold.reporting.results import read_training


@pytest.fixture
def figure(training):
    def make(seconds=(2.0, 2.1, 2.3), **arguments):
        found = []
        for seed, epoch_s in enumerate(seconds, 1):
            directory = training(seed=seed, epoch_s=epoch_s, **arguments).publish()
            found.append(read_training(directory))
        return figure_of_merit(found)

    return make


def test_a_figure_equals_itself(figure):
    own = figure()
    comparison = compare(own, own)
    assert comparison.comparable
    assert not comparison.free
    assert not comparison.notes
    assert all(ratio.ratio == 1 for ratio in comparison.ratios)
    assert "overlap" in verdict(comparison)


def test_gain_points_to_the_better_side_in_every_row(figure):
    """A ratio upside down would praise the slower machine."""
    slow, fast = figure((4.0, 4.0, 4.0)), figure((1.0, 1.0, 1.0), measured=True)
    gains = {ratio.name: ratio.ratio for ratio in compare(slow, fast).ratios}
    assert gains.pop("epochs") == 1
    assert gains == pytest.approx(dict.fromkeys(gains, 4.0))
    assert set(gains) == {
        "time to target (s)", "LLNL's figure of merit (1/s)", "time per epoch (s)", "training samples per second",
    }  # fmt: skip
    assert verdict(compare(slow, fast)).startswith("B reaches the target 4 times as fast; every seed of B")
    assert verdict(compare(fast, slow)).startswith("A reaches the target 4 times as fast; every seed of A")


def test_range_is_that_of_all_pairs_of_seeds(figure):
    a, b = figure((2.0, 2.5, 3.0)), figure((1.0, 2.2, 1.5), ranks=2)
    time, fom, *_ = compare(a, b).ratios
    pairs = [x.time_to_target_s / y.time_to_target_s for x, y in itertools.product(a.seeds, b.seeds)]
    assert (time.least, time.greatest) == (min(pairs), max(pairs))
    pairs = [y.llnl_fom / x.llnl_fom for x, y in itertools.product(a.seeds, b.seeds)]
    assert (fom.least, fom.greatest) == (min(pairs), max(pairs))
    assert not time.separated


def test_overlap_is_not_called_a_win(figure):
    assert "more seeds are needed" in verdict(compare(figure((2.0, 2.0, 4.0)), figure((1.9, 1.9, 3.9), ranks=2)))
    assert "each side has one seed" in verdict(compare(figure((2.0,)), figure((1.0,), ranks=2)))


@pytest.mark.parametrize(
    ("least", "greatest", "apart"), [(1.1, 1.5, True), (1.0, 1.5, False), (0.5, 1.0, False), (0.5, 0.9, True)]
)
def test_seeds_that_touch_are_not_apart(figure, least, greatest, apart):
    spread = figure((2.0,)).epoch_s
    assert Ratio("time", spread, spread, 1.0, least, greatest).separated is apart


def test_other_settings_explain_other_data(figure):
    """The digest is news only where the settings are equal."""
    a, b = figure(), figure(val_split=25)
    b = b.model_copy(update={"dataset": b.dataset.model_copy(update={"digest": "ee" * 32})})
    assert [d.name for d in compare(a, b).differences] == ["val_split"]


def test_keys_that_must_match_are_named_with_both_values(figure):
    a, b = figure(), figure(target_dice=0.9, optimizer="SGD")
    comparison = compare(a, b)
    assert not comparison.comparable
    assert {(d.name, d.a, d.b) for d in comparison.differences} == {
        ("target_dice", 0.95, 0.9),
        ("optimizer", "ADAM", "SGD"),
    }


def test_key_that_only_one_side_has(figure):
    """Local norm statistics make the sharding part of must_match; an absent key must not read as equal."""
    a = figure()
    b = a.model_copy(update={"must_match": {**a.must_match, "dc_num_shards": [1, 1, 2]}})
    for comparison in (compare(a, b), compare(b, a)):
        assert [d.name for d in comparison.differences] == ["dc_num_shards"]
        assert "(absent)" in (comparison.differences[0].a, comparison.differences[0].b)


def test_equal_settings_but_other_data(figure):
    a = figure()
    b = a.model_copy(update={"dataset": a.dataset.model_copy(update={"digest": "ee" * 32})})
    assert [d.name for d in compare(a, b).differences] == ["digest of the data set"]


@pytest.mark.parametrize("stage", keys.STAGE_VERSIONS)
def test_another_algorithm_is_not_compared(figure, monkeypatch, stage):
    """A stage whose result changed with its code would pass for the same benchmark under equal settings."""
    a, before = figure(), keys.STAGE_VERSIONS[stage]
    monkeypatch.setitem(keys.STAGE_VERSIONS, stage, before + 1)
    comparison = compare(a, figure())
    assert not comparison.comparable
    assert [(d.name, d.a, d.b) for d in comparison.differences] == [(f"version.{stage}", before, before + 1)]


def test_free_choices_are_told_but_do_not_forbid(figure):
    comparison = compare(figure(), figure(ranks=4, local_batch_size=1, torch_amp=False))
    assert comparison.comparable
    assert {"ranks", "local_batch_size", "torch_amp"} <= {d.name for d in comparison.free}
    # 1 rank x 2 against 4 ranks x 1.
    assert [(d.a, d.b) for d in comparison.free if d.name == "global batch"] == [(2, 4)]


def test_missing_figure_is_not_comparable(figure):
    comparison = compare(figure(), figure(ranks=2, converged=False))
    assert not comparison.comparable
    assert not comparison.differences
    assert comparison.missing[0].startswith("B (tiny on 2 ranks) has no figure of merit: target_dice 0.95")
    assert comparison.ratios[0].name == "epochs"


def test_a_sound_file_of_another_kind_is_not_called_damaged(training):
    """Told to make a result anew, a user would throw a good measurement away."""
    directory = training().publish()
    for wrong in (directory, directory / "result.json"):
        with pytest.raises(UserError, match="is not a figure of merit; a run's figure of merit is results/runs"):
            compare_files(wrong, wrong)
