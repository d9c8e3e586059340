"""Trainings on several ranks, started by real launchers."""

import json
import math
import os
import subprocess
import sys

import pytest
from launching import mpiexec
from training_jobs import result, rows, train, undisturbed, work

from scaffold.errors import ExitCode
from scaffold.training.checkpoint import LAST, read

pytestmark = pytest.mark.multirank


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """Output of an undisturbed training on two ranks."""
    return undisturbed(data, tmp_path_factory, ranks=2)


def test_two_ranks_train_as_one_world(two):
    """Hazard 52: two processes that each believe to be rank 0 of 1 would publish over each other."""
    found = result(two)
    assert (found["ranks"], found["world"]["ranks"], found["world"]["backend"]) == (2, 2, "gloo")
    assert found["world"]["launcher"] == "mpi"
    assert found["world"]["threads"] == 1
    assert found["total_optimizer_steps"] == 4 * 6
    assert len(found["attempts"]) == 1


def test_torchrun_gives_the_same_bits_without_mpi(data, tmp_path, two, monkeypatch):
    """Hazard 52: who launches must not matter to the result; and people without MPI can train."""
    (tmp_path / "mpi4py.py").write_text("raise ImportError('there is no MPI here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    there_is_none = subprocess.run([sys.executable, "-c", "import mpi4py"], capture_output=True)
    assert there_is_none.returncode != 0
    output = tmp_path / "out"
    done = train(data, output, ranks=2, launcher="torchrun")
    assert done.returncode == 0, done.stderr
    assert result(output)["world"]["launcher"] == "torchrun"
    assert rows(output) == rows(two)


@pytest.mark.parametrize(("launched", "asked"), [(2, 4), (2, 1)])
def test_a_wrong_number_of_ranks_is_refused_before_any_file(data, tmp_path, launched, asked):
    """Hazard 52: on every rank, and with the command that would be right."""
    done = train(data, tmp_path, ranks=asked, launched=launched)
    assert done.returncode == ExitCode.USER_ERROR
    assert f"started with {launched} ranks, but --ranks {asked} was given" in done.stderr
    assert f"mpiexec -n {asked} " in done.stderr
    assert done.stderr.count("scaffold train: ") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "value"), [("threads", 0), ("minutes", -1), ("minutes", "nan")])
def test_a_wrong_argument_is_told_once(data, tmp_path, option, value):
    """With a thousand ranks the message would come a thousand times."""
    done = train(data, tmp_path, ranks=2, **{option: value})
    assert done.returncode == ExitCode.USER_ERROR
    assert done.stderr.count("must be greater than 0") == 1
    assert list(tmp_path.iterdir()) == []


def test_data_verbs_tell_a_wrong_number_of_ranks_once(data):
    """The same, for the verbs that make data."""
    verb = ["search", "--config", data / "study.yaml", "--ranks", "3", "--output", data / "never.csv"]
    done = subprocess.run(
        [mpiexec(), "-n", "2", sys.executable, "-m", "mpi4py", "-m", "scaffold", *verb],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == ExitCode.USER_ERROR
    assert done.stderr.count("started with 2 ranks, but --ranks 3 was given") == 1


def test_a_study_that_only_rank_0_reads_fails_on_all(data, tmp_path):
    """Hazards 33, 53: what one rank sees on the file system is decided for all."""
    done = train(data, tmp_path, ranks=2, run="nope")
    assert done.returncode == ExitCode.USER_ERROR
    assert "no such run; there are: tiny" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ("raise 1 9", ExitCode.INTERNAL, "rank 1 of 2: RuntimeError: the dog ate my tensor"),
        ("damage 0 9", ExitCode.DAMAGED, "masks.npy is truncated; rebuild it with: rebuild it"),
        ("nan 1 9", ExitCode.INCURABLE, "epoch 2: a sum is not finite"),
    ],
)
def test_a_rank_that_fails_in_a_step_ends_all_with_its_error(data, tmp_path, fault, code, told):
    """Hazard 33: the others wait in a collective for a rank that will not come, until a time limit of minutes."""
    done = train(data, tmp_path, ranks=2, fault=fault)
    assert done.returncode == code
    assert f"scaffold train: {told}" in done.stderr
    (attempt,) = json.loads((work(tmp_path) / "attempts.json").read_text())
    assert attempt["exit_code"] == code
    assert told in attempt["reason"]
    assert (work(tmp_path) / "failed.json").exists() == (code == ExitCode.INCURABLE)
    assert not (work(tmp_path) / "lock.json").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_defect_that_the_ranks_agree_upon_is_told_with_its_traceback(data, tmp_path, rank):
    """Printed by rank 0, whoever failed, the traceback would end in the agreement and not in the defect."""
    done = train(data, tmp_path, ranks=2, fault=f"open {rank} 0")
    assert done.returncode == ExitCode.INTERNAL
    assert done.stderr.count("in open_samples") == 1
    assert done.stderr.count(f"scaffold train: rank {rank} of 2, opening the data set: KeyError: 'the dog ate") == 1


def test_a_row_counts_what_both_ranks_saw(data, tmp_path):
    """Hazards 4, 5: loss and Dice of rank 0 alone, or of both without their weights, are another number."""
    done = train(data, tmp_path / "out", ranks=2, fault="watch 0 0", set="epochs=1")
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "out")
    columns = {
        "train": ("epoch_loss", "overall_loss", "train_dice"),
        "validate": ("val_loss_epoch", "val_loss_avg", "val_dice"),
    }
    for what, (total, mean, dice) in columns.items():
        files = [tmp_path / f"watched.{rank}.jsonl" for rank in (0, 1)]
        watched = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        own = [entry[1:] for entry in watched if entry[0] == what]
        samples, loss_sum, dice_sum = (math.fsum(values) for values in zip(*own, strict=True))
        assert samples == {"train": 12, "validate": 4}[what]
        assert float(row[total]) == pytest.approx(loss_sum, rel=1e-12)
        assert float(row[mean]) == pytest.approx(loss_sum / samples, rel=1e-12)
        assert float(row[dice]) == pytest.approx(dice_sum / samples, rel=1e-12)
        first, second = (math.fsum(entry[1] for entry in half) for half in (own[: len(own) // 2], own[len(own) // 2 :]))
        assert abs(first - second) > 1e-6 * loss_sum, "control: the ranks see different losses"


def test_the_last_epoch_off_the_interval_is_saved_by_all_ranks(data, tmp_path):
    """Hazard 39: decided from what rank 0 alone knows, it enters a collective that the other does not."""
    done = train(data, tmp_path, ranks=2, set="checkpoint_interval=3")
    assert done.returncode == 0, done.stderr
    assert read(work(tmp_path) / "checkpoints" / LAST).epoch == 4


def test_a_failure_to_publish_on_rank_0_ends_all_with_it(data, tmp_path):
    """Hazard 29: the others would wait for the end that rank 0 does not reach."""
    (tmp_path / "predictions.npz").mkdir()
    done = train(data, tmp_path, ranks=2, set="epochs=1")
    assert done.returncode == ExitCode.IO_ERROR, done.stderr
    assert done.stderr.count("scaffold train: ") == 1
    assert not (tmp_path / "result.json").exists()


def test_publishing_may_take_longer_than_a_collective_waits(data, tmp_path):
    """At a large scale rank 0 predicts for minutes; the finished training would end as a lost contact."""
    done = train(data, tmp_path, ranks=2, fault="dawdle 0 6", set="epochs=1")
    assert done.returncode == 0, done.stderr
    assert result(tmp_path)["epochs"] == 1
