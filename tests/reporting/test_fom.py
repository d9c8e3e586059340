"""The figure of merit: what is in it, when there is none, and what must not be mixed."""

from __future__ import annotations

import json

import pytest

from scaffold.errors import DamagedFileError, UserError
from scaffold.reporting.fom import figure_of_merit, headline, read_fom, write_fom
from scaffold.reporting.results import read_training


def join(*directories):
    return figure_of_merit([read_training(directory) for directory in directories])


def test_one_seed_by_hand(training):
    """Stalls of checkpoints count in the time to target but not in LLNL's figure, which is a reciprocal."""
    made = training(epochs=2, ranks=2)
    made.stats["epoch_duration"] = [4.0, 5.0]
    made.stats["train_duration"] = [2.0, 3.0]
    made.stats["checkpoint_stall"] = [0.25, 0.75]
    made.result |= {"epoch_time_s": 9.0, "checkpoint_stall_s": 1.0}
    figure = join(made.publish())
    assert figure.time_to_target_s.median == 10.0
    assert figure.llnl_fom.median == 1 / 9
    assert figure.epoch_s.median == 4.5
    assert figure.samples_per_s.median == pytest.approx(17 * 2 / 5)  # 24 volumes, 30 % of which validate
    assert figure.steps_per_s.median == 26 / 5
    assert figure.global_batch == 4
    assert figure.missing is None


def test_median_least_and_greatest_over_seeds_in_any_order(training):
    folders = [training(seed=seed, epoch_s=seconds).publish() for seed, seconds in ((1, 3.0), (2, 1.0), (3, 2.0))]
    figure = join(*folders)
    times = {s.seed: s.time_to_target_s for s in figure.seeds}
    assert list(times) == [1, 2, 3]
    spread = figure.time_to_target_s
    assert (spread.min, spread.median, spread.max) == (times[2], times[3], times[1])
    assert figure.llnl_fom.max == figure.seeds[1].llnl_fom
    assert join(*folders[::-1]).model_dump(exclude={"provenance"}) == figure.model_dump(exclude={"provenance"})
    pair = join(*folders[:2]).time_to_target_s
    assert pair.median == (times[1] + times[2]) / 2


def test_one_row_of_statistics(training):
    """Hazard 23: a run that converges in its first epoch has a figure of merit like any other."""
    assert join(training(epochs=1).publish()).epochs.median == 1


def test_a_seed_short_of_the_target_leaves_no_figure(training):
    """Dropping the seed that failed would flatter the others."""
    good, bad = training(seed=1).publish(), training(seed=2, converged=False, epochs=40).publish()
    figure = join(good, bad)
    assert figure.time_to_target_s is None
    assert figure.llnl_fom is None
    assert figure.missing == "target_dice 0.95 was not reached (seed 2 stopped at 0.704 after 40 epochs)"
    assert figure.missing in headline(figure)
    assert figure.epochs.max == 40
    assert figure.seeds[0].time_to_target_s is not None
    assert figure.seeds[1].time_to_target_s is None


def test_a_capped_run_has_no_figure_even_if_it_converged(training):
    figure = join(training(epochs=5).publish())
    assert figure.missing is None
    capped = training(seed=2, epochs=5)
    capped.result["config"]["epochs"] = 100
    figure = join(capped.publish())
    assert figure.time_to_target_s is None
    assert figure.seeds[0].time_to_target_s is None
    assert figure.seeds[0].llnl_fom is None
    assert "epochs is 100" in figure.missing


def test_conditions_travel_with_the_figure(training, tmp_path):
    """fom.json must be comparable at another site that has nothing else."""
    made = training(resumed_at=(9,))
    write_fom([made.publish()], tmp_path / "fom.json")
    content = json.loads((tmp_path / "fom.json").read_text())
    assert content["must_match"] == made.result["must_match"]
    assert len(content["must_match_hash"]) == 12
    assert content["free"]["local_batch_size"] == 2
    assert not set(content["free"]) & set(content["must_match"])
    assert content["dataset"]["digest"] == "d1" * 32
    assert content["world"]["device"] == "Example CPU 9000"
    assert content["commits"] == ["0123456789ab"]
    assert content["versions"]["torch"] == "2.13.0"
    assert content["seeds"][0]["lost_s"] == 4.5
    assert content["seeds"][0]["ended"] == ["killed", "done"]
    assert content["kernels"] == made.result["kernels"]
    assert read_fom(tmp_path / "fom.json").model_dump(mode="json") == content


def test_files_from_before_kernels_were_recorded(training, tmp_path):
    """A figure measured last year could not be compared any more."""
    made, path = training(), tmp_path / "fom.json"
    del made.result["kernels"]
    assert write_fom([made.publish()], path).kernels is None
    content = json.loads(path.read_text())
    del content["kernels"]
    path.write_text(json.dumps(content))
    assert read_fom(path).kernels is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target_dice": 0.9}, "they differ in target_dice"),
        ({"local_batch_size": 1, "dataloader_num_workers": 3}, "they differ in local_batch_size;"),
        ({"run": "other"}, "of tiny/ranks1 and other/ranks1"),
        ({"ranks": 2}, "of tiny/ranks1 and tiny/ranks2"),
    ],
)
def test_seeds_of_different_runs_are_not_joined(training, change, told):
    with pytest.raises(UserError, match=told):
        join(training(seed=1).publish(), training(seed=2, **change).publish())


def test_seeds_of_different_code_versions_or_data_are_not_joined(training):
    first, other = training(seed=1).publish(), training(seed=2)
    identity = other.result["training_identity"]
    other.result["training_identity"] = "0" * 12
    with pytest.raises(UserError, match="differ in code version"):
        join(first, other.publish())
    other.result["training_identity"] = identity
    other.result["dataset"]["digest"] = "ee" * 32
    with pytest.raises(UserError, match="their data differ"):
        join(first, other.publish())


def test_a_seed_counts_once(training):
    directory = training().publish()
    with pytest.raises(UserError, match="seed 1 is named twice"):
        join(directory, directory)
    with pytest.raises(UserError, match="at least one seed"):
        join()


def test_kernels_of_all_seeds_are_in_the_figure(training):
    """A fallback in a later seed would be hidden by the first."""
    fallen = training(seed=2)
    fallen.result["kernels"]["calls"]["clipped_adam"] = {"triton": 5}
    figure = join(training(seed=1).publish(), fallen.publish())
    assert figure.kernels.calls["clipped_adam"] == {"eager": 5, "triton": 5}


def test_what_a_reader_should_know_is_a_warning(training):
    """Launch keys, commits and machines may differ between seeds, but not silently."""
    other = training(seed=2, dataloader_num_workers=3)
    other.result["provenance"] = {"commit": "feedfeedfeed-dirty", "versions": {"torch": "2.12.0"}}
    other.result["world"]["device"] = "Another CPU"
    warnings = join(training(seed=1).publish(), other.publish()).warnings
    assert [text for text in warnings if "2 seeds; LLNL asks" in text]
    assert [text for text in warnings if "0123456789ab, feedfeedfeed-dirty" in text]
    assert [text for text in warnings if "uncommitted changes" in text]
    assert [text for text in warnings if "different device: Another CPU, Example CPU 9000" in text]
    assert [text for text in warnings if "library versions" in text]
    assert join(*(training(seed=seed).publish() for seed in (1, 2, 3))).warnings == []


def test_damaged_seed_leaves_an_older_figure_alone(training, tmp_path):
    output = tmp_path / "fom.json"
    directory = training().publish()
    write_fom([directory], output)
    before = output.read_bytes()
    (directory / "train_stats.csv").write_text("epoch\n")
    with pytest.raises(DamagedFileError):
        write_fom([directory], output)
    assert output.read_bytes() == before


def test_headline_is_one_sentence(training):
    figure = join(*(training(seed=seed).publish() for seed in (1, 2, 3)))
    text = headline(figure)
    assert text.startswith("tiny on 1 rank (Example CPU 9000): validation Dice 0.95 in ")
    assert f"{figure.time_to_target_s.median:.4g} s (median of 3 seeds, " in text
