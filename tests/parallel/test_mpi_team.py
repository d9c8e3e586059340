"""Which team a process is in."""

from __future__ import annotations

import pytest

from scaffold.errors import UserError
from scaffold.parallel import environment, mpi
from scaffold.parallel.team import Solo


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in environment._WORLD_SIZES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", [None, "1", "", "auto"])
def test_one_rank_needs_no_mpi(monkeypatch, value):
    """Hazard 49: a variable that is set but empty, or "auto"."""
    monkeypatch.setattr(mpi, "MpiTeam", lambda: pytest.fail("MPI was initialised"))
    if value is not None:
        monkeypatch.setenv("PMI_SIZE", value)
    assert isinstance(mpi.world(1), Solo)


def test_one_rank_asked_for_but_several_launched(monkeypatch):
    """Each of them would take itself for the only one, and all write the same files."""

    class World:
        size = 2

    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(mpi, "MpiTeam", World)
    with pytest.raises(UserError, match="started with 2 ranks, but --ranks 1 was given"):
        mpi.check_size(mpi.world(1).size, 1)


def test_size_is_checked():
    mpi.check_size(3, 3)
    with pytest.raises(UserError, match=r"started with 1 rank, but --ranks 4 .*another MPI library.*mpiexec -n 4"):
        mpi.check_size(1, 4)


def test_singletons_are_refused_even_where_one_rank_is_asked_for(monkeypatch):
    """Hazard 52: srun without PMI starts four processes, each rank 0 of 1; all would write the same files."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UserError, match=r"--ranks 1: .* 4 processes \(SLURM_STEP_NUM_TASKS=4\).*unset SLURM_STEP"):
        mpi.check_size(1, 1)
    mpi.check_size(4, 4)


@pytest.mark.parametrize(
    ("scheduler", "remedy", "launcher"),
    [
        ({"SLURM_JOB_ID": "7"}, "srun --mpi=pmi2", "srun --ntasks 4"),
        ({"FLUX_URI": "local:///x"}, "flux run -o pmi=", "flux run --ntasks 4"),
        ({}, "mpiexec of", "mpiexec -n 4"),
    ],
)
def test_the_remedy_is_the_schedulers(monkeypatch, scheduler, remedy, launcher):
    """The user knows srun, and not what PMI is."""
    for name in ("SLURM_JOB_ID", "FLUX_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in scheduler.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"{remedy}.*; launch with: {launcher} python -m mpi4py -m scaffold"):
        mpi.check_size(1, 4)
    with pytest.raises(UserError, match=rf"started with 2 ranks, .* given; launch with: {launcher} python"):
        mpi.check_size(2, 4)
