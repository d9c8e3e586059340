"""What launchers and schedulers say of a process, in environment variables.

Of a launcher: the number of ranks is never taken from here (``--ranks`` is the authority); its variables only
name the rank and the number of ranks on one host, which pick the device and the profiled ranks, and betray
a launcher that started several processes which do not know of each other. Of a scheduler: which one it is,
the job's id, how often the job was requeued, and when it will end.

The first usable variable wins; a blank one is absent, and one that is not a number is skipped with a warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

# In each row the launchers come in the order torchrun, MVAPICH, Open MPI, PMI, Hydra, LSF's jsrun, PALS, and
# last Slurm and Flux, whose variables an mpiexec of another kind inside an allocation inherits unchanged.
_LOCAL_RANKS = (
    "LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK", "MPI_LOCALRANKID",
    "JSM_NAMESPACE_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID", "FLUX_TASK_LOCAL_ID",
)  # fmt: skip
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE",
    "MPI_LOCALNRANKS", "JSM_NAMESPACE_LOCAL_SIZE", "PALS_LOCAL_SIZE",
)  # fmt: skip
_TASKS_AND_NODES = (("SLURM_NTASKS", "SLURM_NNODES"), ("FLUX_JOB_SIZE", "FLUX_JOB_NNODES"))
_RANKS = (
    "RANK", "MV2_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "JSM_NAMESPACE_RANK",
    "PALS_RANKID", "SLURM_PROCID", "FLUX_TASK_RANK",
)  # fmt: skip
# SLURM_NTASKS is not among them: a batch script, which is one process, has it too.
_WORLD_SIZES = (
    "WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "PALS_NRANKS",
    "SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE",
)  # fmt: skip
_JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "FLUX_JOB_ID", "LSB_JOBID", "PBS_JOBID")

Environment = Mapping[str, str]


def local_rank(environment: Environment = os.environ) -> int | None:
    """Return this process's rank among those on its host, or None if no launcher says."""
    return _first(_LOCAL_RANKS, environment)


def local_size(environment: Environment = os.environ) -> int | None:
    """Return the number of ranks on this host, or None if no launcher says.

    Slurm and Flux give tasks and nodes; their quotient is rounded up, so that a host with fewer tasks
    still has one rank that every host has.
    """
    size = _first(_LOCAL_SIZES, environment)
    if size is not None:
        return size
    for tasks_name, nodes_name in _TASKS_AND_NODES:
        tasks, nodes = number(tasks_name, environment), number(nodes_name, environment)
        if tasks and nodes:
            return -(-tasks // nodes)
    return None


def world_rank(environment: Environment = os.environ) -> int | None:
    """Return the rank that a launcher claims to have given this process, or None; for messages only."""
    return _first(_RANKS, environment)


def world_size(environment: Environment = os.environ) -> int | None:
    """Return the number of ranks that a launcher claims to have started, or None; to be checked, not trusted."""
    return _first(_WORLD_SIZES, environment)


def world_size_source(environment: Environment = os.environ) -> str | None:
    """Return the variable that :func:`world_size` took its number from ("PMI_SIZE"), or None."""
    return next((name for name in _WORLD_SIZES if number(name, environment) is not None), None)


def scheduler(environment: Environment = os.environ) -> str | None:
    """Return which scheduler this process runs under, "slurm" or "flux", or None if neither."""
    if environment.get("SLURM_JOB_ID", "").strip():
        return "slurm"
    return "flux" if environment.get("FLUX_URI", "").strip() else None


def job_id(environment: Environment = os.environ) -> str | None:
    """Return the scheduler's name of this job ("SLURM_JOB_ID=123"), or None outside a scheduler."""
    for name in _JOB_IDS:
        if environment.get(name, "").strip():
            return f"{name}={environment[name].strip()}"
    return None


def restarts(environment: Environment = os.environ) -> int:
    """Return how often the scheduler has put this job back into its queue and started it again under the same id."""
    return number("SLURM_RESTART_COUNT", environment) or 0


def job_end(environment: Environment = os.environ) -> int | None:
    """Return when the scheduler will end this job for its time limit, POSIX time, or None if it does not say."""
    return number("SLURM_JOB_END_TIME", environment)


def started_by_torchrun(environment: Environment = os.environ) -> bool:
    """Return whether rank, size and address of a torch store are all in the environment."""
    return all(environment.get(name, "").strip() for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def number(name: str, environment: Environment = os.environ) -> int | None:
    """Return the variable ``name`` as a number >= 0; None if blank, absent or (with a warning) junk."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        logging.getLogger(__name__).warning("ignored %s=%r: not a number", name, text)
        return None
    return int(text)


def _first(names: tuple[str, ...], environment: Environment) -> int | None:
    for name in names:
        value = number(name, environment)
        if value is not None:
            return value
    return None
