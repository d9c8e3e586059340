"""Reading what a training published."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scaffold.errors import DamagedFileError, UserError
from scaffold.reporting.results import read_predictions, read_result, read_stats


def test_reads_back_what_was_published(training):
    made = training(ranks=2, resumed_at=(9, 17))
    directory = made.publish()
    result = read_result(directory)
    assert result.model_dump()["must_match"] == made.result["must_match"]
    assert result.global_batch == 4
    assert result.resumed_at == [9, 17]
    stats = read_stats(directory / "train_stats.csv")
    # Bit for bit: a rounded time would make the sums disagree with result.json.
    assert stats.epoch_duration.tolist() == made.stats.epoch_duration.tolist()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"format_version": 1', b"null", b"\xff\xfe"],
    ids=["empty", "brace", "truncated", "null", "not UTF-8"],
)
def test_unreadable_result_names_file_and_remedy(training, content):
    """A truncated result.json must stop the report with its name and the command that rebuilds it."""
    directory = training().publish()
    path = directory / "result.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_result(directory)
    assert str(caught.value).startswith(str(path))
    assert f"snakemake --profile profiles/local --configfile results/study.yaml --force {path}" in str(caught.value)


@pytest.mark.parametrize("name", ["result.json", "train_stats.csv"])
def test_missing_file_is_damage(training, name):
    directory = training().publish()
    (directory / name).unlink()
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read: No such file"):
        read_result(directory)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("epochs", None, "epochs"),
        ("epoch_time_s", -1.0, "epoch_time_s"),
        ("val_dice", float("nan"), "val_dice"),
        ("format_version", 2, "format_version"),
        ("attempts", [], "attempts"),
        ("config", {"problem_scale": 99}, "problem_scale"),
    ],
)
def test_wrong_field_is_named(training, key, value, told):
    made = training()
    made.result[key] = value
    with pytest.raises(DamagedFileError, match=told):
        read_result(made.publish())


def test_every_field_is_required(training):
    """A field that a broken writer forgot must not read as a default that looks measured."""
    made = training()
    for name in ("run", "must_match", "dataset", "lost_s", "world", "build_s"):
        kept = made.result.pop(name)
        with pytest.raises(DamagedFileError, match=name):
            read_result(made.publish())
        made.result[name] = kept
    read_result(made.publish())


@pytest.mark.parametrize("name", ["epoch_time_s", "checkpoint_stall_s", "val_dice", "total_optimizer_steps", "epochs"])
def test_result_of_another_training_than_its_statistics(training, name):
    """A result.json beside another attempt's train_stats.csv would give a figure that nobody measured."""
    made = training()
    made.result[name] += 1 if isinstance(made.result[name], int) else 1e-6
    with pytest.raises(DamagedFileError, match=f"train_stats.csv: {name}"):
        read_result(made.publish())


def test_sum_in_another_order_is_no_damage(training):
    made = training()
    made.result["epoch_time_s"] = float(np.sum(made.stats.epoch_duration.to_numpy()[::-1]))
    assert read_result(made.publish()).epochs == 25


def test_ranks_must_agree(training):
    made = training(ranks=2)
    made.result["world"]["ranks"] = 4
    with pytest.raises(DamagedFileError, match="trained on 4 ranks, published as 2"):
        read_result(made.publish())


def test_an_attempt_that_only_published_did_not_resume(training):
    """Its first epoch would have been the one after the last."""
    assert read_result(training(epochs=25, resumed_at=(9, 26)).publish()).resumed_at == [9]


@pytest.mark.parametrize("name", ["epoch_duration", "train_duration"])
def test_epoch_without_time_is_refused(training, name):
    """It would divide by zero, or make a rate of nothing."""
    made = training(epochs=3)
    made.stats.loc[1, name] = 0.0
    with pytest.raises(DamagedFileError, match="an epoch that took no time"):
        read_stats(made.publish() / "train_stats.csv")


def test_converged_must_agree_with_dice(training):
    made = training(converged=False)
    made.result["converged"] = True
    with pytest.raises(DamagedFileError, match=r"converged is True at val_dice 0\.70"):
        read_result(made.publish())


def test_every_truncation_of_the_last_row_is_refused(training):
    """Hazard 22: half a last row may still be numbers; wherever it is cut, it must not be believed."""
    path = training(epochs=3, measured=True).publish() / "train_stats.csv"
    whole = path.read_text()
    start = whole[:-1].rindex("\n") + 1
    for cut in range(start + 1, len(whole)):
        path.write_text(whole[:cut])
        with pytest.raises(DamagedFileError):
            read_stats(path)
    path.write_text(whole)
    assert len(read_stats(path)) == 3


def test_no_epoch_by_the_users_own_settings(training):
    """`epochs: 0` is no damage, and rebuilding would give the same again."""
    made = training(epochs=1)
    made.result |= {"epochs": 0, "val_loss_avg": None, "val_dice": 0.0, "epoch_time_s": 0, "converged": False}
    made.result["config"]["epochs"] = 0
    made.stats = made.stats[:0]
    with pytest.raises(UserError, match=r"no epoch was trained \(epochs is 0, target_dice 0\.95\)"):
        read_result(made.publish())


def test_second_header_and_repeated_epoch_are_refused(training):
    """Hazard 22: a second header mid-file, or an epoch twice after a resume, would double its time."""
    path = training(epochs=4).publish() / "train_stats.csv"
    header, *rows = path.read_text().splitlines(keepends=True)
    for lines, told in (
        ([header, *rows[:2], header, *rows[2:]], "not a table of numbers"),
        ([header, *rows[:2], *rows[1:]], "epochs 1, 2, ... in order"),
        ([header, *rows[1:]], "epochs 1, 2, ... in order"),
        ([header, rows[1], rows[0], *rows[2:]], "epochs 1, 2, ... in order"),
        (rows, "lacks the column epoch"),
    ):
        path.write_text("".join(lines))
        with pytest.raises(DamagedFileError, match=told):
            read_stats(path)


def test_no_row_and_one_row(training):
    """Hazard 23: no epoch is a clear error; one epoch is a table."""
    path = training(epochs=1).publish() / "train_stats.csv"
    assert read_stats(path).epoch.tolist() == [1]
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(DamagedFileError, match="no epoch was trained"):
        read_stats(path)


def test_only_the_step_time_may_be_empty(training):
    made = training(epochs=2)
    assert read_stats(made.publish() / "train_stats.csv").minibatch_duration.isna().all()
    made.stats.loc[1, "data_duration"] = np.nan
    with pytest.raises(DamagedFileError, match="empty or non-finite"):
        read_stats(made.publish() / "train_stats.csv")


def test_predictions_never_unpickle(training):
    """An object array in predictions.npz would run code of whoever wrote it."""
    made = training()
    assert read_predictions(made.publish() / "predictions.npz").truth.shape == (3, 32, 32)
    made.predictions["dice"] = np.array([print, None, None], dtype=object)
    with pytest.raises(DamagedFileError, match="pickle"):
        read_predictions(made.publish() / "predictions.npz")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("image", lambda a: a[:, :2]),
        ("prediction", lambda a: a[:2]),
        ("dice", lambda a: a[:1]),
        ("palette", lambda a: a[:3]),
    ],
)
def test_predictions_that_do_not_fit_together(training, name, change):
    made = training()
    made.predictions[name] = change(made.predictions[name])
    with pytest.raises(DamagedFileError, match=r"inconsistent|beyond its palette"):
        read_predictions(made.publish() / "predictions.npz")


def test_truncated_predictions(training):
    path = training().publish() / "predictions.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match=r"predictions\.npz cannot be read"):
        read_predictions(path)


def test_keys_that_a_later_writer_adds_do_no_harm(training):
    directory = training().publish()
    path = directory / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "another": {"conv": {"eager": 3}}, "new": 1}))
    assert read_result(directory).seed == 1
