"""Measuring one case: the time, the error and the memory of each of its arms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from scaffold import provenance
from scaffold.kernels.bench.case import Case
from scaffold.kernels.bench.ceilings import Ceilings
from scaffold.kernels.bench.rows import Row
from scaffold.kernels.bench.timing import Timed, in_graph, interval, time_in_rounds

GRAPH_SPAN_S = 0.5e-3
"""What a CUDA graph of calls takes at the roof; an operation that takes longer alone needs no graph."""

MOST_CALLS = 20
"""Calls in one graph."""

CASE_SPAN_S = 0.5
"""A case is timed for about so long, whatever the repetitions asked for."""


def measure(workload: str, case: Case, device: torch.device, ceilings: Ceilings, repetitions: int) -> list[Row]:
    """Time the arms of a case.

    Each round runs every arm once, in alternating order, so that a drift of the clock meets all alike. The
    base runs twice a round, the second time as an arm of its own: its ratio must be 1 within its interval,
    and how far that reaches is what a ratio can be trusted to.
    """
    base = next(arm for arm in case.arms if arm.name == case.base)
    errors = [case.error((arm.check or arm.run)()) for arm in case.arms]
    peaks = [_peak_extra_bytes(arm.footprint, device) for arm in case.arms]
    bytes_s, flops_s = case.minimum.bytes / ceilings.bytes_per_s, case.minimum.flops / ceilings.rate(case.arithmetic)
    roof, limit = max((bytes_s, "bytes"), (flops_s, case.arithmetic))
    calls = min(MOST_CALLS, int(GRAPH_SPAN_S / roof)) if case.graph and device.type == "cuda" else 0
    # The base again has a graph of its own: where a graph's memory lies makes a difference too.
    arms = [*case.arms, replace(base, name=f"{base.name} (again)")]
    errors, peaks = [*errors, errors[case.arms.index(base)]], [*peaks, peaks[case.arms.index(base)]]
    timed = [in_graph(arm, calls) if calls else Timed(arm.run, 0) for arm in arms]
    totals = time_in_rounds([each.run for each in timed], device, repetitions, CASE_SPAN_S)
    times = [[total / max(1, each.calls) for total in row] for each, row in zip(timed, totals, strict=True)]
    base_times = times[case.arms.index(base)]
    made = {key: str(value) for key, value in provenance.stamp().items() if key in ("commit", "created_at", "python")}
    made |= {name: version for name, version in provenance.library_versions().items() if name in ("torch", "triton")}
    rows = []
    for arm, each, error, peak, seconds in zip(arms, timed, errors, peaks, times, strict=True):
        low, middle, high = interval(seconds)
        ratio = interval([a / b for a, b in zip(seconds, base_times, strict=True)])
        rows.append(
            Row(
                device=device_name(device), workload=workload, case=case.name, arm=arm.name, precision=arm.precision,
                median_ms=middle * 1e3, low_ms=low * 1e3, high_ms=high * 1e3, repetitions=len(seconds),
                graph_calls=each.calls,
                time_over_base=ratio[1], time_over_base_low=ratio[0], time_over_base_high=ratio[2],
                roof_ms=roof * 1e3, limit=limit, score=roof / middle, rms_error=error,
                min_gbytes=case.minimum.bytes / 1e9, min_gflop=case.minimum.flops / 1e9,
                gbyte_per_s=case.minimum.bytes / middle / 1e9, tflop_per_s=case.minimum.flops / middle / 1e12,
                own_gbytes=arm.cost.bytes / 1e9 if arm.cost else math.nan,
                own_gflop=arm.cost.flops / 1e9 if arm.cost else math.nan,
                peak_extra_mbytes=peak / 1e6, registers=arm.registers() if arm.registers else "",
                copy_gbyte_per_s=ceilings.bytes_per_s / 1e9, float32_tflop_per_s=ceilings.flops_per_s / 1e12,
                tf32_tflop_per_s=ceilings.tensor_flops_per_s / 1e12,
                bfloat16_tflop_per_s=ceilings.bfloat16_flops_per_s / 1e12, made=made,
            )
        )  # fmt: skip
    return rows


def device_name(device: torch.device) -> str:
    """Return the device's name as results carry it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _peak_extra_bytes(function: Callable[[], object] | None, device: torch.device) -> float:
    if function is None or device.type != "cuda":
        return math.nan
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    return torch.cuda.max_memory_allocated(device) - before
