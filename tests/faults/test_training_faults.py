"""Trainings that are killed, stopped, or run out of disk, and the same command given again."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from torch.distributed import TCPStore
from training_jobs import command_of, result, rows, train, undisturbed, work

from scaffold.errors import ExitCode
from scaffold.training.checkpoint import BEST, LAST, read

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Rows of an uninterrupted training, by number of ranks."""
    return lambda ranks: rows(undisturbed(data, tmp_path_factory, ranks))


def files(folder):
    """Return the names of all files below ``folder``."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def killed(data, tmp_path_factory):
    """Output of a training on one rank that was killed in the middle of epoch 3."""
    output = tmp_path_factory.mktemp("killed")
    done = train(data, output, 1, "kill 0 30")
    assert done.returncode != 0
    return output


def continued(data, output, ranks=1):
    done = train(data, output, ranks)
    assert done.returncode == 0, done.stderr
    return result(output)


def test_one_rank_killed_and_run_again(data, killed, tmp_path, whole):
    """Hazards 22, 27, 30: kill -9 in epoch 3; every bit but times is as without it."""
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    assert not (output / "result.json").exists()
    found = continued(data, output)
    assert rows(output) == whole(1)
    first, second = found["attempts"]
    assert (first["reason"], first["end"] is None, first["last_epoch"], second["first_epoch"]) == (
        "killed",
        False,
        2,
        3,
    )
    assert found["lost_s"] > 0
    assert "lock.json" not in files(output)


def test_restart_sh_continues_without_snakemake(data, tmp_path, whole):
    """Hazard 59: from any directory, with a path that needs quoting, on the same ranks, to the same bits."""
    output, elsewhere = tmp_path / "Ann's $HOME run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = train(data, output, 2, "kill 1 14", launcher_prefix="mpiexec -n 2")
    assert done.returncode != 0
    assert not (output / "result.json").exists()

    script = work(output) / "restart.sh"
    # The study, and Python, are not where the user happens to be later.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PATH")}
    done = subprocess.run([script], cwd=elsewhere, env={**environment, "PATH": "/usr/bin:/bin"}, timeout=100)
    assert done.returncode == 0
    assert rows(output) == whole(2)
    found = result(output)
    assert (found["ranks"], found["world"]["launcher"]) == (2, "mpi")
    assert [attempt["first_epoch"] for attempt in found["attempts"]] == [1, 3]


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_of_several_ranks_killed_and_run_again(data, tmp_path, whole, ranks):
    """Hazards 22, 27, 33: the others end with it, within seconds, and nothing is lost but its epoch."""
    steps = 12 // ranks
    done = train(data, tmp_path, ranks, f"kill {ranks - 1} {2 * steps + 2}")
    assert done.returncode != 0
    continued(data, tmp_path, ranks)
    assert rows(tmp_path) == whole(ranks)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_waits_on_its_device_for_a_dead_one_ends_with_75(data, tmp_path, victim):
    """Over NCCL no call fails; without a launcher that ends all, it would wait until a time limit aborts it."""
    command, environment = command_of(data, tmp_path, 2, "none")
    environment |= {"FAULT": f"strand {victim} 8", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    # torchrun's agents serve the store, so that rank 0's death does not take it along.
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    environment |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        _, told = ranks[1 - victim].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1 - victim].returncode == ExitCode.RUN_AGAIN
    assert ranks[victim].wait() == -signal.SIGKILL
    assert told.count(f"scaffold train: lost contact with rank {victim}; the last checkpoint is safe") == 1
    if victim == 1:
        (attempt,) = json.loads((work(tmp_path) / "attempts.json").read_text())
        assert (attempt["ending"], attempt["exit_code"]) == ("lost rank", ExitCode.RUN_AGAIN)


def test_a_damaged_last_checkpoint_costs_epochs_but_no_bit(data, killed, tmp_path, whole):
    """Hazard 31: resumed from best, the redone epochs are the same."""
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    last = work(output) / "checkpoints" / LAST
    last.write_bytes(last.read_bytes()[:1000])
    assert (work(output) / "checkpoints" / BEST).exists()
    continued(data, output)
    assert rows(output) == whole(1)
    assert f"{LAST}.corrupt" in files(output)


def test_no_whole_checkpoint_is_an_error_until_cleaned(data, killed, tmp_path):
    """Hazard 31, 40: starting over would hide that days are lost."""
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    for name in (LAST, BEST):
        (work(output) / "checkpoints" / name).write_bytes(b"")
    for _ in range(2):
        done = train(data, output)
        assert done.returncode == ExitCode.DAMAGED
        assert "no other checkpoint is whole; rebuild it with: scaffold clean-run" in done.stderr


def test_sigterm_on_one_rank_stops_all_with_75_and_continues(data, tmp_path, whole):
    """A scheduler's warning may reach any rank; all must end together, in good order."""
    done = train(data, tmp_path, 2, "term 1 8")
    assert done.returncode == ExitCode.RUN_AGAIN, done.stderr
    assert "SIGTERM received on rank 1" in done.stderr
    (attempt,) = json.loads((work(tmp_path) / "attempts.json").read_text())
    assert attempt["reason"].startswith("stopped: SIGTERM, after epoch")
    assert attempt["exit_code"] == ExitCode.RUN_AGAIN
    continued(data, tmp_path, 2)
    assert rows(tmp_path) == whole(2)


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_a_second_ctrl_c_on_one_rank_ends_all_at_once(data, tmp_path, launcher):
    """Taken for a stop that all agreed upon, that rank alone would enter the collective end, and the job hang."""
    start = time.monotonic()
    done = train(data, tmp_path, 2, "insist 1 8", launcher=launcher)
    assert time.monotonic() - start < 60
    assert done.returncode == (ExitCode.RUN_AGAIN if launcher == "mpi" else 1), done.stderr
    assert "scaffold train: interrupted; run the same command again" in done.stderr
    (attempt,) = json.loads((work(tmp_path) / "attempts.json").read_text())
    assert attempt["exit_code"] == ExitCode.RUN_AGAIN


def test_loader_processes_do_not_obey_a_signal_to_the_whole_job(data, tmp_path):
    """A scheduler signals every process; a loader that dies first fails the step in which training would stop."""
    done = train(data, tmp_path, 1, "term-all 0 14", launcher="none", set="dataloader_num_workers=1")
    assert done.returncode == ExitCode.RUN_AGAIN, done.stderr
    assert "stopped: SIGTERM, after epoch 1" in done.stderr


def test_loader_processes_end_with_a_killed_training(data, tmp_path):
    """Left over, they hold memory, and the pipe of the job's log, which then never ends: this test would wait."""
    done = train(data, tmp_path, 1, "kill 0 14", launcher="none", set="dataloader_num_workers=1")
    assert done.returncode == -signal.SIGKILL


def test_a_full_disk_keeps_the_old_checkpoint_and_says_so(data, tmp_path, whole):
    """Hazards 30, 32, 33: every write of rank 0 fails from epoch 3 on; on all ranks exit code 74."""
    done = train(data, tmp_path, 2, "full 0 14")
    assert done.returncode == ExitCode.IO_ERROR
    assert f"{LAST}: File too large (an older version of the file, if any, is intact)" in done.stderr
    assert [name for name in files(tmp_path) if ".tmp." in name] == []
    assert read(work(tmp_path) / "checkpoints" / LAST).epoch == 2
    assert rows(work(tmp_path))[:2] == whole(2)[:2]
