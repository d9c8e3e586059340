"""What launchers say, and what they only seem to say."""

import subprocess
import sys

import pytest

from scaffold.parallel import environment


@pytest.mark.parametrize("name", environment._LOCAL_RANKS)
def test_every_launcher_names_the_local_rank(name):
    """Hazard 50: a launcher that is not known makes every rank take device 0, or profile."""
    assert environment.local_rank({name: "3"}) == 3


@pytest.mark.parametrize("name", environment._RANKS)
def test_every_launcher_names_the_rank(name):
    """A rank that hangs before MPI has started can only be named by what its launcher called it."""
    assert environment.world_rank({name: "3"}) == 3


@pytest.mark.parametrize("name", environment._WORLD_SIZES)
def test_every_launcher_names_the_size_of_the_world(name):
    """Without it, N processes that MPI did not connect take themselves for one training each."""
    assert environment.world_size({name: "4"}) == 4
    assert environment.world_size_source({name: "4"}) == name


def test_a_batch_script_is_one_process():
    """Slurm tells it the number of tasks of the whole job, which an srun inside it will start."""
    assert environment.world_size({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}) is None


@pytest.mark.parametrize("name", environment._LOCAL_SIZES)
def test_every_launcher_names_the_local_size(name):
    """Hazard 50: without the local size every rank profiles."""
    assert environment.local_size({name: "4"}) == 4


def test_blank_is_absent_and_junk_is_skipped_by_name(caplog):
    """Hazard 49: junk in the first variable must not mask the good second one, nor pass unnoticed."""
    assert environment.local_rank({"LOCAL_RANK": " ", "SLURM_LOCALID": "2"}) == 2
    assert not caplog.records
    assert environment.local_rank({"LOCAL_RANK": "auto", "SLURM_LOCALID": "2"}) == 2
    assert "LOCAL_RANK='auto'" in caplog.text
    assert environment.local_rank({"LOCAL_RANK": "-1"}) is None


def test_tasks_over_nodes_rounds_up_and_zero_nodes_does_not_divide():
    """Hazards 49, 64: zero nodes divide by zero; flooring 3 tasks on 2 nodes says that hosts have one rank."""
    assert environment.local_size({"SLURM_NTASKS": "3", "SLURM_NNODES": "2"}) == 2
    assert environment.local_size({"SLURM_NTASKS": "3", "SLURM_NNODES": "0"}) is None
    flux = {"SLURM_NTASKS": "3", "SLURM_NNODES": "0", "FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"}
    assert environment.local_size(flux) == 4


def test_the_job_is_named_with_its_scheduler():
    """A number alone could be another scheduler's job."""
    assert environment.job_id({"FLUX_JOB_ID": "f123"}) == "FLUX_JOB_ID=f123"
    assert environment.job_id({"SLURM_JOB_ID": " "}) is None


def test_help_works_under_a_broken_launcher_environment():
    """Hazard 49: variables that are empty or junk killed even --help."""
    names = (*environment._LOCAL_RANKS, *environment._RANKS, *environment._WORLD_SIZES, "MASTER_PORT", "SLURM_NNODES")
    broken = dict.fromkeys(names, "auto")
    done = subprocess.run(
        [sys.executable, "-m", "scaffold", "check-launch", "--help"],
        env={**environment.os.environ, **broken, "MASTER_ADDR": ""}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert "--ranks" in done.stdout
