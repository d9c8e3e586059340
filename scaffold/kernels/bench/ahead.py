"""Compiling what the kernel benchmark will run in several processes, into the caches that outlive them.

A run over the whole network needs some two hundred kernels. One after another they take minutes of a
device that waits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import torch

from scaffold.kernels.bench.case import Sizes
from scaffold.kernels.bench.workloads import recipes

MOST_PROCESSES = 8
"""Each holds the tensors of a case on the device."""

_log = logging.getLogger(__name__)


def compile_ahead(names: Sequence[str], device: torch.device, sizes: Sizes) -> None:
    """Run each arm that compiles once, in other processes.

    What fails here (memory, a device that serves one process only) is left to the benchmark itself.

    Args:
        names: workloads.
        device: the benchmark's.
        sizes: which cases.
    """
    tasks = [(name, device, sizes, number) for name in names for number in range(len(recipes(name, device, sizes)))]
    processes = min(MOST_PROCESSES, len(tasks), len(os.sched_getaffinity(0)))
    if processes < 2:
        return
    try:
        with ProcessPoolExecutor(processes, get_context("spawn"), _one_compiler) as pool:
            failures = [failure for failure in pool.map(compile_case, *zip(*tasks, strict=True)) if failure]
    except BrokenProcessPool as error:
        failures = [str(error)]
    if failures:
        _log.warning(
            "%d of %d cases were not compiled ahead, the first since: %s", len(failures), len(tasks), failures[0]
        )


def compile_case(name: str, device: torch.device, sizes: Sizes, number: int) -> str | None:
    """Run the arms of one case that compile; return why that failed, or None."""
    try:
        _run_arms(name, device, sizes, number)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    finally:
        torch.cuda.empty_cache()
    return None


def _run_arms(name: str, device: torch.device, sizes: Sizes, number: int) -> None:
    case = recipes(name, device, sizes)[number]()
    for arm in case.arms:
        if arm.compiles:
            arm.run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _one_compiler() -> None:
    """Keep Inductor from starting processes of its own in each of ours; it reads this when first imported."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
