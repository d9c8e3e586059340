"""The rows of a training and their file."""

import pandas as pd
import pytest

from scaffold.records import COLUMNS, TIME_COLUMNS, Row
from scaffold.training.statistics import Statistics

LLNL = (
    "epoch,epoch_loss,overall_loss,val_loss_epoch,val_loss_avg,train_dice,val_dice,epoch_duration,"
    "optimizer_steps,total_optimizer_steps"
)


def row(epoch, **values):
    plain = dict.fromkeys(COLUMNS, 0.1 * epoch) | {
        "epoch": epoch, "optimizer_steps": 3, "total_optimizer_steps": 3 * epoch, "checkpoint_stall": 0.0,
    }  # fmt: skip
    return Row(**(plain | values))


def statistics(path, epochs):
    made = Statistics(path)
    made.rows += [row(epoch) for epoch in range(1, epochs + 1)]
    return made


def test_llnls_columns_come_first_in_their_order():
    """Tools made for LLNL's file read ours."""
    assert ",".join(COLUMNS[:10]) == LLNL
    assert set(TIME_COLUMNS) == {name for name in COLUMNS if "duration" in name or "stall" in name}


def test_numbers_survive_to_the_last_bit(tmp_path):
    """Rounded values would make a resumed run's file differ, or hide that it does."""
    path = tmp_path / "train_stats.csv"
    made = statistics(path, 3)
    made.write()
    text = path.read_text()
    assert text.startswith(LLNL)
    assert text.endswith("\n")
    assert [float(line.split(",")[1]) for line in text.splitlines()[1:]] == [0.1, 0.2, 0.1 * 3]
    frame = pd.read_csv(path)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["total_optimizer_steps"].tolist() == [3, 6, 9]


def test_resuming_rewrites_exactly_the_known_rows(tmp_path):
    """Hazard 22: lost epochs stay in the file, a second header appears, or half a row glues to the next."""
    path = tmp_path / "train_stats.csv"
    statistics(path, 5).write()
    with path.open("a") as file:
        file.write("6,0.1,0.")
    resumed = Statistics(path, statistics(path, 3).to_json())
    assert resumed.epoch == 3
    assert resumed.total_optimizer_steps == 9
    resumed.rows.append(row(4))
    resumed.write()
    lines = path.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "3", "4"]


def test_a_deleted_file_comes_back_whole(tmp_path):
    """Hazard 22: a file recreated in the middle lacks its header and the first epochs."""
    resumed = Statistics(tmp_path / "train_stats.csv", statistics(tmp_path, 2).to_json())
    resumed.recover_stall()
    resumed.write()
    assert len((tmp_path / "train_stats.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "stall"),
    [(None, 0.0), ("", 0.0), ("epoch,checkpoint_stall\n2,1.5\n", 1.5), ("epoch,checkpoint_stall\n1,1.5\n", 0.0),
     ("epoch,checkpoint_stall\n2,x\n", 0.0)],
)  # fmt: skip
def test_the_last_checkpoints_own_stall_comes_from_the_file(tmp_path, content, stall):
    """Without it a killed run would report a shorter time to the target."""
    path = tmp_path / "train_stats.csv"
    if content is not None:
        path.write_text(content)
    resumed = Statistics(path, statistics(path, 2).to_json())
    resumed.recover_stall()
    assert resumed.rows[-1].checkpoint_stall == stall


def test_before_the_first_epoch(tmp_path):
    """Hazards 23, 25: a run of no epochs has no last row to read."""
    made = Statistics(tmp_path / "train_stats.csv")
    made.recover_stall()
    assert (made.epoch, made.val_dice, made.total_optimizer_steps, made.minibatch_time) == (0, 0.0, 0, None)


def test_minibatch_time_is_the_median_of_the_epochs_that_have_one(tmp_path):
    """Hazard 19: an epoch of ragged batches alone has none; its cell is empty, not "None"."""
    made = Statistics(tmp_path / "x.csv")
    made.rows = [row(1, minibatch_duration=0.3), row(2, minibatch_duration=None), row(3, minibatch_duration=0.1)]
    assert made.minibatch_time == pytest.approx(0.2)
    made.write()
    assert (tmp_path / "x.csv").read_text().splitlines()[2].endswith(",0.0,")
