"""The kernel benchmark: arms of one workload, interleaved, against ceilings measured in the same run.

A *workload* is one operation in one direction; a *case* is one problem size; an *arm* is one way to compute
it. All arms of a case are judged by the same minimum of bytes and operations, so that none looks good by
doing more: ``score = roof time / measured time``, where the roof time is what that minimum takes at the copy
bandwidth and at the arithmetic rate of the same card in the same run.

What a launch costs the host is left out. Nothing waits between the timed runs, so that the host is ahead of
a device that is busy for longer than a launch takes; shorter arms are timed by the replay of a CUDA graph of
several calls (``Case.graph``). Their tensors are then found in the L2 cache if they fit in there, as in a
training step, where the operation before has just written them.
"""

from __future__ import annotations

import importlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from scaffold import provenance
from scaffold.errors import UserError
from scaffold.kernels import ahead

_UNET = "scaffold.kernels.unet_bench"

WORKLOADS: dict[str, str] = {
    "gated_stack_backward": "scaffold.kernels.gated_stack.bench_backward:recipes",
    "gated_stack_forward": "scaffold.kernels.gated_stack.bench_forward:recipes",
    "group_norm_forward": f"{_UNET}.group_norm:forward",
    "group_norm_backward": f"{_UNET}.group_norm:backward",
    "convolution_forward": f"{_UNET}.convolution:forward",
    "convolution_input_gradient": f"{_UNET}.convolution:input_gradient",
    "convolution_weight_gradient": f"{_UNET}.convolution:weight_gradient",
    "stem_forward": f"{_UNET}.stem:forward",
    "stem_weight_gradient": f"{_UNET}.stem:weight_gradient",
    "upsample_forward": f"{_UNET}.upsample:forward",
    "upsample_backward": f"{_UNET}.upsample:backward",
    "head_forward": f"{_UNET}.head:forward",
    "head_backward": f"{_UNET}.head:backward",
    "last_norm_head_forward": f"{_UNET}.last_norm_head:forward",
    "last_norm_head_backward": f"{_UNET}.last_norm_head:backward",
    "loss_sums_forward": f"{_UNET}.loss_sums:forward",
    "loss_sums_backward": f"{_UNET}.loss_sums:backward",
    "clipped_adam": f"{_UNET}.adam:step",
}
"""Name: module and function, which takes a device and ``Sizes`` and returns a list of ``Recipe``."""

GRAPH_SPAN_S = 0.5e-3
"""What a CUDA graph of calls takes at the roof; an operation that takes longer alone needs no graph."""

MOST_CALLS = 20
"""Calls in one graph."""

CASE_SPAN_S, LEAST_ROUNDS = 0.5, 5
"""A case is timed for about so long, whatever the repetitions asked for, but in no fewer rounds."""

_log = logging.getLogger(__name__)

Sizes = Literal["full", "small"]
"""``full``: the sizes that figures are quoted for; ``small``: seconds, to see that everything runs."""


Result = Tensor | tuple[Tensor, ...]

Arithmetic = Literal["float32", "bfloat16"]
"""``float32``: of the general cores; ``bfloat16``: matrix products, summed in float32."""


class Cost(NamedTuple):
    """Work of one repetition."""

    bytes: float
    """Moved to and from device memory."""
    flops: float


@dataclass(frozen=True)
class Arm:
    """One way to compute a case."""

    name: str
    run: Callable[[], Result]
    """One repetition; returns its result. It must not wait for the device."""
    precision: str = "ieee"
    cost: Cost | None = None
    """What the arm is modelled to move and compute."""
    footprint: Callable[[], object] | None = None
    """The same work with its own allocations, to measure them."""
    registers: Callable[[], str] | None = None
    """Tells registers and spilled bytes of its kernels."""
    compiles: bool = False
    """Whether its first run compiles, which is then done ahead, for many cases at once."""
    check: Callable[[], Result] | None = None
    """One repetition from the state that ``error`` knows, for an arm that changes its operands."""


@dataclass(frozen=True)
class Case:
    """One problem size."""

    name: str
    minimum: Cost
    arms: list[Arm]
    error: Callable[[Any], float]
    """Root mean square error of a result (of its worst tensor) relative to float64, perhaps of a part of it."""
    base: str
    """The arm that the others are divided by."""
    arithmetic: Arithmetic = "float32"
    """Which arithmetic rate the minimum is held against."""
    graph: bool = False
    """Whether to time short runs by a CUDA graph; its arms must have no state on the host."""


Recipe = Callable[[], Case]
"""Makes a case; its tensors live as long as the case."""


class Ceilings(NamedTuple):
    """What the device can do, measured."""

    bytes_per_s: float
    """Device copy, counting bytes read and written."""
    flops_per_s: float
    """A large float32 product of the vendor's library."""
    tensor_flops_per_s: float
    """The same in tf32; the float32 rate where there is none."""
    bfloat16_flops_per_s: float
    """The same in bfloat16."""

    def rate(self, arithmetic: Arithmetic) -> float:
        """Return the operations per second of a kind."""
        return self.bfloat16_flops_per_s if arithmetic == "bfloat16" else self.flops_per_s


@dataclass(frozen=True)
class Row:
    """One line of the CSV."""

    device: str
    workload: str
    case: str
    arm: str
    precision: str
    median_ms: float
    low_ms: float
    high_ms: float
    repetitions: int
    graph_calls: int
    """Calls in the CUDA graph that was timed; 0 if the host launched them one by one."""
    time_over_base: float
    time_over_base_low: float
    time_over_base_high: float
    roof_ms: float
    limit: str
    """Which ceiling the roof is: bytes, float32 or bfloat16."""
    score: float
    rms_error: float
    min_gbytes: float
    min_gflop: float
    gbyte_per_s: float
    tflop_per_s: float
    own_gbytes: float
    own_gflop: float
    peak_extra_mbytes: float
    registers: str
    copy_gbyte_per_s: float
    float32_tflop_per_s: float
    tf32_tflop_per_s: float
    bfloat16_tflop_per_s: float
    made: dict[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, object]:
        """Return one value a column."""
        values: dict[str, object] = asdict(self)
        del values["made"]
        return values | self.made


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
        ahead.compile_ahead(workloads, device, sizes)
    rows = []
    with _side_stream(device):
        ceilings = measure_ceilings(device)
        for name in workloads:
            begin = time.perf_counter()
            for recipe in recipes(name, device, sizes):
                rows += _measure_recipe(name, recipe, device, ceilings, repetitions)
                _free(device)
            _log.info("%s: %.0f s", name, time.perf_counter() - begin)
    return rows


def recipes(name: str, device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the workload ``name``."""
    module, _, function = WORKLOADS[name].partition(":")
    return cast(list[Recipe], getattr(importlib.import_module(module), function)(device, sizes))


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
    timed = [_in_graph(arm, calls) if calls else _Timed(arm.run, 0) for arm in arms]
    totals = interleave([each.run for each in timed], device, repetitions, CASE_SPAN_S)
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


def interleave(
    functions: Sequence[Callable[[], object]], device: torch.device, repetitions: int, span_s: float = math.inf
) -> list[list[float]]:
    """Time functions in rounds, A B C, C B A, A B C ...; return the seconds of each.

    Args:
        functions: enqueue work on the device, or do it on the CPU.
        device: which.
        repetitions: rounds.
        span_s: all rounds together should take no longer; ``LEAST_ROUNDS`` of them, or ``repetitions`` if
            that is less, are made anyway.
    """
    for function in functions:
        for _ in range(2):
            function()
    _wait(device)
    begin = time.perf_counter()
    for function in functions:
        function()
    _wait(device)
    rounds = min(repetitions, max(LEAST_ROUNDS, int(min(span_s / (time.perf_counter() - begin), repetitions))))
    pending = []
    for turn in range(rounds):
        order = range(len(functions)) if turn % 2 == 0 else reversed(range(len(functions)))
        pending += [(index, _start(functions[index], device)) for index in order]
    times: list[list[float]] = [[] for _ in functions]
    for index, seconds in pending:
        times[index].append(seconds())
    return times


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median between the limits of its 95 % confidence interval (order statistics)."""
    ordered = sorted(values)
    n = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(n))
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return ordered[low], median(ordered), ordered[high]


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure the device's bandwidth and arithmetic rates."""
    gpu = device.type == "cuda"
    source = torch.randn(2**29 if gpu else 2**24, device=device)
    target = torch.empty_like(source)
    size, rounds = (8192, 9) if gpu else (512, 3)
    a, b = torch.randn((2, size, size), device=device)
    narrow_a, narrow_b = a.bfloat16(), b.bfloat16()
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        functions = [lambda: target.copy_(source), lambda: torch.mm(a, b), lambda: torch.mm(narrow_a, narrow_b)]
        copy, product, narrow = (median(times) for times in interleave(functions, device, rounds))
        torch.set_float32_matmul_precision("high")
        (tensor_times,) = interleave([lambda: torch.mm(a, b)], device, rounds)
    finally:
        torch.set_float32_matmul_precision(precision)
    flops = 2 * size**3
    return Ceilings(
        bytes_per_s=2 * source.nbytes / copy, flops_per_s=flops / product,
        tensor_flops_per_s=flops / median(tensor_times), bfloat16_flops_per_s=flops / narrow,
    )  # fmt: skip


def device_name(device: torch.device) -> str:
    """Return the device's name as results carry it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def columns() -> list[str]:
    """Return the CSV's columns."""
    return [f.name for f in fields(Row) if f.name != "made"] + ["commit", "created_at", "python", "torch", "triton"]


def table(rows: list[Row]) -> str:
    """Return the rows as text, a block for each case."""
    lines: list[str] = []
    workload = case = ""
    for row in rows:
        if row.workload != workload:
            titles = f"{'roof ms':>10}{'ms':>10}{'over base':>11}{'95 %':>15}{'of roof':>9}{'rms error':>11}"
            lines += ["", f"{f'{row.workload} on {row.device}':<50}{titles}"]
        name = row.case if (row.workload, row.case) != (workload, case) else ""
        workload, case = row.workload, row.case
        lines.append(
            f"  {name:<24}{row.arm:<24}{row.roof_ms:>10.4f}{row.median_ms:>10.4f}{row.time_over_base:>11.3f}"
            f"{f'{row.time_over_base_low:.3f}-{row.time_over_base_high:.3f}':>15}{row.score:>9.0%}{row.rms_error:>11.1e}"
        )
    return "\n".join(lines[1:])


class _Timed(NamedTuple):
    """What is timed of an arm."""

    run: Callable[[], object]
    calls: int
    """Calls that one run replays; 0 if it is the call itself."""


def _in_graph(arm: Arm, calls: int) -> _Timed:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(calls):
                arm.run()
    except RuntimeError as error:
        _log.warning("%s is timed with what its launches cost the host: no CUDA graph took it: %s", arm.name, error)
        return _Timed(arm.run, 0)
    return _Timed(graph.replay, calls)


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


def _side_stream(device: torch.device) -> AbstractContextManager[object]:
    """Return a stream to work on: the default stream cannot be captured, nor a backward pass of a forward on it."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(device: torch.device) -> None:
    """Give back what a case held, the memory of its graphs included."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _start(function: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Run ``function``; return how to learn its seconds once the device has finished."""
    if device.type != "cuda":
        begin = time.perf_counter()
        function()
        seconds = time.perf_counter() - begin
        return lambda: seconds
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    function()
    stop.record()

    def elapsed() -> float:
        stop.synchronize()
        return cast(float, start.elapsed_time(stop)) / 1e3

    return elapsed


def _peak_extra_bytes(function: Callable[[], object] | None, device: torch.device) -> float:
    if function is None or device.type != "cuda":
        return math.nan
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    return torch.cuda.max_memory_allocated(device) - before
