"""What launchers say of a process, in environment variables.

The number of ranks is never taken from here (``--ranks`` is the authority): these variables only name
the rank and the number of ranks on one host, which pick the device and the profiled ranks. The first
usable variable wins; a blank one is absent, and one that is not a number is skipped with a warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

_LOCAL_RANKS = (
    "LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK", "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID", "SLURM_LOCALID", "FLUX_TASK_LOCAL_ID",
)  # fmt: skip
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE",
    "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE",
)  # fmt: skip
_TASKS_AND_NODES = (("SLURM_NTASKS", "SLURM_NNODES"), ("FLUX_JOB_SIZE", "FLUX_JOB_NNODES"))
_WORLD_SIZES = ("WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_NRANKS")
_JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "FLUX_JOB_ID", "LSB_JOBID")

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


def world_size(environment: Environment = os.environ) -> int | None:
    """Return the number of ranks that a launcher claims to have started, or None; to be checked, not trusted."""
    return _first(_WORLD_SIZES, environment)


def job_id(environment: Environment = os.environ) -> str | None:
    """Return the scheduler's name of this job ("SLURM_JOB_ID=123"), or None outside a scheduler."""
    for name in _JOB_IDS:
        if environment.get(name, "").strip():
            return f"{name}={environment[name].strip()}"
    return None


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
