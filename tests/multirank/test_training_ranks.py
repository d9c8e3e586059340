"""Trainings on several ranks, started by real launchers."""

import json

import pytest
from training_jobs import result, rows, train, undisturbed, work

from scaffold.errors import ExitCode

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


def test_torchrun_gives_the_same_bits_without_mpi(data, tmp_path, two):
    """Hazard 52: who launches must not matter to the result."""
    done = train(data, tmp_path, ranks=2, launcher="torchrun")
    assert done.returncode == 0, done.stderr
    assert result(tmp_path)["world"]["launcher"] == "torchrun"
    assert rows(tmp_path) == rows(two)


@pytest.mark.parametrize(("launched", "asked"), [(2, 4), (2, 1)])
def test_a_wrong_number_of_ranks_is_refused_before_any_file(data, tmp_path, launched, asked):
    """Hazard 52: on every rank, and with the command that would be right."""
    done = train(data, tmp_path, ranks=asked, launched=launched)
    assert done.returncode == ExitCode.USER_ERROR
    assert f"started with {launched} ranks, but --ranks {asked} was given" in done.stderr
    assert f"mpiexec -n {asked} " in done.stderr
    assert list(tmp_path.iterdir()) == []


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
    assert (work(tmp_path) / "failed.json").exists() == (code != ExitCode.INTERNAL)
    assert not (work(tmp_path) / "lock.json").exists()
