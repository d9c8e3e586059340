"""Leaving a job in good order.

PyTorch now and then aborts while the interpreter shuts down (a C++ thread wants the lock of an
interpreter that is gone; pytorch issues 38228 and 190489), after all work is done. So a rank closes
its groups and MPI itself and ends with ``os._exit``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from scaffold.parallel.launch import Context
    from scaffold.parallel.team import Team

_BARRIER = timedelta(seconds=60)


def leave(context: Context, exit_code: int) -> NoReturn:
    """End this process with ``exit_code``, upon which all ranks have agreed. Collective."""
    if context.control_group is not None:
        import torch.distributed as dist

        try:
            dist.monitored_barrier(group=context.control_group, timeout=_BARRIER)
        except RuntimeError:
            # A rank died meanwhile, for which MPI's end, being collective, would wait for ever.
            abort(context, exit_code)
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    mpi = _initialised_mpi()
    if mpi is not None:
        mpi.Finalize()
    _exit(exit_code)


def abort(team: Team, exit_code: int) -> NoReturn:
    """End this process, and under MPI the whole job, at once; for a failure that the others cannot share."""
    mpi = _initialised_mpi()
    if mpi is not None and team.size > 1:
        _flush()
        mpi.COMM_WORLD.Abort(exit_code)
    _exit(exit_code)


def _exit(exit_code: int) -> NoReturn:
    _flush()
    os._exit(exit_code)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _initialised_mpi() -> Any:
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    return module
