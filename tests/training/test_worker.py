"""A whole training in this process: from the data set to the published result."""

import json
import shutil
import time
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch
import yaml
from training_jobs import result, rows, study, work

from scaffold import cli
from scaffold.config import Job, Study, training_identity
from scaffold.errors import ExitCode
from scaffold.parallel.launch import Context, LostRankError
from scaffold.parallel.team import RankError
from scaffold.training import loop, workdir, worker
from scaffold.training.attempts import ATTEMPTS
from scaffold.training.restart import Command
from scaffold.training.state import State


@pytest.fixture
def run(data, tmp_path, capsys):
    """Run the tiny job with changed keys; return its exit code and what it told on standard error."""

    def start(output=tmp_path, deadline=None, **keys):
        spec = study(tmp_path / "study.yaml", **keys).run("tiny")
        job = Job("tiny", spec.config, 1, 1, spec.resources)
        code = worker.run(Context(), job, Command(data / "meta.yaml", output), deadline)
        return code, capsys.readouterr().err

    yield start
    torch.use_deterministic_algorithms(False)


def test_the_published_files_are_complete(run, data, tmp_path):
    """What the workflow declares as output, and the report reads."""
    assert run(epochs=2)[0] == ExitCode.DONE
    found = result(tmp_path)
    assert (found["run"], found["ranks"], found["seed"], found["epochs"]) == ("tiny", 1, 1, 2)
    assert found["converged"] is False
    assert found["time_to_target_s"] is None
    assert found["epoch_time_s"] > 0
    assert found["total_optimizer_steps"] == 2 * 12
    assert found["lost_s"] == 0
    assert found["dataset"]["digest"] == yaml.safe_load((data / "meta.yaml").read_text())["digest"]
    assert found["world"]["backend"] == "none"
    assert set(found["kernels"]["calls"]["segmentation_sums"]) == {"eager"}, "no kernel of ours runs on a CPU"
    assert found["kernels"]["differing_ranks"] == []
    assert [attempt["reason"] for attempt in found["attempts"]] == ["epochs used up"]
    assert json.loads((work(tmp_path) / ATTEMPTS).read_text()) == found["attempts"], "the record agrees with the result"
    assert {"build_s", "class_weights_s", "warmup_s"} <= {name for name, value in found.items() if value is not None}
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == found["parameters"]
    again = Study.load(tmp_path / "config.yaml").run("tiny")
    assert training_identity(again.config) == found["training_identity"]
    assert [row["epoch"] for row in rows(tmp_path)] == ["1", "2"]
    assert (tmp_path / "predictions.npz").exists()


def test_time_to_target_is_reported_only_for_a_met_target(run, tmp_path):
    """A capped run's time must not pass for a figure of merit."""
    run(target_dice=0.0)
    found = result(tmp_path)
    assert found["converged"]
    assert found["epochs"] == 1
    assert found["time_to_target_s"] == found["epoch_time_s"] + found["checkpoint_stall_s"]


def test_outputs_that_were_deleted_are_published_again_without_training(run, tmp_path, monkeypatch):
    """Killed between the end of training and Snakemake's record, the outputs are deleted before the rerun."""
    run(epochs=2)
    before = result(tmp_path), rows(tmp_path), (tmp_path / "model.safetensors").read_bytes()
    for path in tmp_path.iterdir():
        if path.is_file():
            path.unlink()
    monkeypatch.setattr(loop, "train_step", lambda *arguments: pytest.fail("trained again"))
    assert run(epochs=2)[0] == ExitCode.DONE
    after = result(tmp_path), rows(tmp_path), (tmp_path / "model.safetensors").read_bytes()
    assert before[1:] == after[1:]
    for key in ("epoch_time_s", "warmup_s", "world", "kernels", "val_dice", "checkpoint_stall_s"):
        assert before[0][key] == after[0][key]
    assert [attempt["reason"] for attempt in after[0]["attempts"]] == ["epochs used up", "published"]


def test_a_failure_to_publish_is_recorded_and_leaves_no_result(run, tmp_path):
    """A result of an earlier training beside new weights, or an attempt that "succeeded" with exit code 74."""
    (tmp_path / "result.json").write_text("old")
    (tmp_path / "predictions.npz").mkdir()
    code, told = run(epochs=1)
    assert code == ExitCode.IO_ERROR, told
    assert not (tmp_path / "result.json").exists()
    (attempt,) = json.loads((work(tmp_path) / ATTEMPTS).read_text())
    assert (attempt["exit_code"], attempt["last_epoch"]) == (ExitCode.IO_ERROR, 1)
    assert "predictions.npz" in attempt["reason"]


def test_a_rank_lost_after_publishing_is_not_taken_for_another_training(run, tmp_path, monkeypatch, caplog):
    """The lock is given back by then, which does not mean that someone took it."""

    @contextmanager
    def lost(self, topic):
        yield
        raise LostRankError("lost contact with rank 1")

    monkeypatch.setattr(Context, "led_by_rank_0", lost)
    code, told = run(epochs=1)
    assert (code, "lost contact with rank 1" in told) == (ExitCode.RUN_AGAIN, True)
    assert "took over" not in caplog.text
    (attempt,) = json.loads((work(tmp_path) / ATTEMPTS).read_text())
    assert attempt["exit_code"] == ExitCode.DONE
    assert result(tmp_path)["epochs"] == 1
    assert not (work(tmp_path) / "lock.json").exists()


def test_a_forced_rerun_trains_afresh(run, tmp_path):
    """After the workflow has recorded success, running again means measuring again."""
    run(epochs=1)
    workdir.seal(tmp_path)
    run(epochs=1)
    assert [attempt["reason"] for attempt in result(tmp_path)["attempts"]] == ["epochs used up"]


def test_more_epochs_continue_and_fewer_start_afresh(run, tmp_path):
    """A lowered end that kept the later epochs would report a longer time to it than was needed."""
    run(epochs=2)
    workdir.seal(tmp_path)
    run(epochs=3)
    assert [attempt["first_epoch"] for attempt in result(tmp_path)["attempts"]] == [1, 3]
    whole = rows(tmp_path)
    run(epochs=1)
    found = result(tmp_path)
    assert (found["epochs"], [attempt["first_epoch"] for attempt in found["attempts"]]) == (1, [1])
    assert rows(tmp_path) == whole[:1]


@pytest.mark.parametrize(
    ("dice", "keys", "beyond"),
    [
        ([0.5, 0.9], {}, False),
        ([0.9, 0.95], {}, True),
        ([0.5, 0.6], {"epochs": 1}, True),
        ([0.5, 0.6], {"epochs": 2}, False),
    ],
)
def test_what_goes_beyond_the_end(dice, keys, beyond, tmp_path):
    """The last epoch may meet the target; an earlier one that did means that training went on after it."""
    config = study(tmp_path / "study.yaml", **{"target_dice": 0.9, "epochs": -1, **keys}).run("tiny").config
    columns = [[epoch, 1.0, 1.0, 1.0, 1.0, 0.5, value, 1.0, 1, epoch, 0.1, 1.0, 1.0, 1.0, 0.0, None]
               for epoch, value in enumerate(dice, start=1)]  # fmt: skip
    assert worker.goes_beyond(State({}, {"epoch": 2, "rows": columns}), config) == beyond


def test_the_time_limit_stops_with_75_and_a_reason(run, tmp_path):
    """Killed at the limit instead, the job would leave no reason."""
    code, told = run(deadline=time.monotonic())
    assert code == ExitCode.RUN_AGAIN
    assert "stopped: time limit, after epoch 0" in told
    (attempt,) = json.loads((work(tmp_path) / ATTEMPTS).read_text())
    assert attempt["reason"].startswith("stopped: time limit")


def test_another_data_set_is_refused_with_the_keys_that_differ(run, tmp_path):
    """Training on other data than the study says makes a result that compares with nothing."""
    code, told = run(n_fracts_per_vol=2, n_instances_used_per_fractal=24)
    assert code == ExitCode.USER_ERROR
    assert "n_fracts_per_vol is 3, wanted 2" in told
    assert not (tmp_path / "work").exists()


class SecondOfTwo(Context):
    """Rank 1 of two on two hosts; ``other`` makes rank 0's digests from its own."""

    def __init__(self, other):
        super().__init__()
        self.rank, self.size, self.hosts, self._other = 1, 2, ["here", "there"], other

    def exchange(self, value):
        return [self._other(value) if isinstance(value, tuple) else value, value]


def test_ranks_that_see_different_data_are_refused(data, tmp_path):
    """A file system that is not shared, or is late: the ranks would average gradients of two problems."""
    spec = study(tmp_path / "study.yaml").run("tiny")
    job, meta = Job("tiny", spec.config, 2, 1, spec.resources), data / "meta.yaml"
    found = worker.open_data(SecondOfTwo(lambda own: own), job, meta)
    assert (len(found.training), len(found.validation)) == (12, 4)
    for other in (lambda own: ("x", own[1]), lambda own: (own[0], "x")):
        with pytest.raises(RankError, match="not the same here as on rank 0: there and here see different data sets"):
            worker.open_data(SecondOfTwo(other), job, meta)


def test_a_damaged_file_found_by_a_loader_process_keeps_its_code_until_it_is_rebuilt(data, tmp_path, capsys):
    """A loader process words its exceptions anew; and what the message says to do must be enough to go on."""
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    masks = copy / "parts" / "0000" / "masks.npy"
    content = bytearray(masks.read_bytes())
    content[-3:] = b"\xff\xff\xff"
    masks.write_bytes(content)
    spec = study(tmp_path / "study.yaml", dataloader_num_workers=1, ce_weight_sample_fraction=0.1, epochs=1).run("tiny")
    job = Job("tiny", spec.config, 1, 1, spec.resources)
    assert worker.run(Context(), job, Command(copy / "meta.yaml", tmp_path / "out")) == ExitCode.DAMAGED
    (attempt,) = json.loads((work(tmp_path / "out") / ATTEMPTS).read_text())
    assert "masks.npy has label" in attempt["reason"]
    assert "Traceback" not in attempt["reason"]
    assert "Traceback" not in capsys.readouterr().err

    shutil.copy(data / "parts" / "0000" / "masks.npy", masks)
    assert worker.run(Context(), job, Command(copy / "meta.yaml", tmp_path / "out")) == ExitCode.DONE


def test_a_changed_study_is_refused(data, tmp_path, capsys):
    """A job that was planned with other settings would publish under a wrong identity."""
    arguments = [
        "train",
        "--config",
        str(data / "study.yaml"),
        "--data",
        str(data / "meta.yaml"),
        "--output",
        str(tmp_path),
    ]
    assert cli.main([*arguments, "--identity", "123456789abc"]) == ExitCode.USER_ERROR
    assert "the study changed since Snakemake planned this job" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "told"),
    [(["--minutes", "0"], "--minutes 0.0: must be greater than 0"), (["--ranks", "-1"], "--ranks -1"),
     (["--run", "nope"], "no such run"), (["--set", "local_batch_size=9"], "exceeds the 4 validation volumes")],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_made(data, tmp_path, capsys, option, told):
    """Hazards 57, 61."""
    arguments = [
        "train",
        "--config",
        str(data / "study.yaml"),
        "--data",
        str(data / "meta.yaml"),
        "--output",
        str(tmp_path),
    ]
    assert cli.main([*arguments, *option]) == ExitCode.USER_ERROR
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
