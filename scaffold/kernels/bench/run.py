"""A run of the kernel benchmark: workload by workload, case by case."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch

from scaffold.errors import UserError
from scaffold.kernels.bench.ahead import compile_ahead
from scaffold.kernels.bench.case import Recipe, Sizes
from scaffold.kernels.bench.ceilings import Ceilings, measure_ceilings
from scaffold.kernels.bench.measure import measure
from scaffold.kernels.bench.rows import Row
from scaffold.kernels.bench.timing import side_stream
from scaffold.kernels.bench.workloads import WORKLOADS, recipes

_log = logging.getLogger(__name__)


def run(names: Iterable[str], device: torch.device, sizes: Sizes, repetitions: int) -> list[Row]:
    """Run workloads and return their rows, case by case.

    A case for which the device has too little memory is left out, with a warning.

    Args:
        names: keys of ``WORKLOADS``.
        device: CUDA, HIP or CPU.
        sizes: which cases.
        repetitions: timed runs of each arm; fewer where they take long (``CASE_SPAN_S``).

    Raises:
        UserError: an unknown workload, or no such device.
    """
    workloads = list(names)
    for name in workloads:
        if name not in WORKLOADS:
            raise UserError(f"unknown workload {name}; there are {', '.join(WORKLOADS)}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU is visible to PyTorch; try --device cpu --sizes small to see the benchmark work")
    if device.type == "cuda":
        compile_ahead(workloads, device, sizes)
    rows = []
    with side_stream(device):
        ceilings = measure_ceilings(device)
        for name in workloads:
            begin = time.perf_counter()
            for recipe in recipes(name, device, sizes):
                rows += _measure_recipe(name, recipe, device, ceilings, repetitions)
                _free(device)
            _log.info("%s: %.0f s", name, time.perf_counter() - begin)
    return rows


def _measure_recipe(
    workload: str, recipe: Recipe, device: torch.device, ceilings: Ceilings, repetitions: int
) -> list[Row]:
    case = None
    try:
        case = recipe()
        return measure(workload, case, device, ceilings, repetitions)
    except torch.OutOfMemoryError as error:
        _log.warning("%s: %s is left out: %s", workload, case.name if case else "a case", error)
        return []


def _free(device: torch.device) -> None:
    """Give back what a case held, the memory of its graphs included."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
