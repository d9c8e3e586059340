"""The kernel benchmark: arms of one workload, interleaved, against ceilings measured in the same run.

A *workload* is a module with a function ``cases(device, sizes)``; a *case* is one problem size; an *arm* is
one way to compute it. All arms of a case are judged by the same minimum of bytes and operations, so that
none looks good by doing more: ``score = roof time / measured time``, where the roof time is what that
minimum takes at the copy bandwidth and at the float32 rate of the same card in the same run.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from scaffold import provenance
from scaffold.errors import UserError

WORKLOADS: dict[str, str] = {
    "gated_stack_backward": "scaffold.kernels.gated_stack.bench_backward",
    "gated_stack_forward": "scaffold.kernels.gated_stack.bench_forward",
}
"""Name: module."""

Sizes = Literal["full", "small"]
"""``full``: the sizes that figures are quoted for; ``small``: seconds, to see that everything runs."""


class Cost(NamedTuple):
    """Work of one repetition."""

    bytes: float
    """Moved to and from device memory."""
    flops: float


@dataclass(frozen=True)
class Arm:
    """One way to compute a case."""

    name: str
    run: Callable[[], Tensor]
    """One repetition; returns its result. It must not wait for the device."""
    precision: str = "ieee"
    cost: Cost | None = None
    """What the arm is modelled to move and compute."""
    footprint: Callable[[], object] | None = None
    """The same work with its own allocations, to measure them."""
    registers: str = ""
    """Registers and spilled bytes of its kernels."""


@dataclass(frozen=True)
class Case:
    """One problem size."""

    name: str
    minimum: Cost
    arms: list[Arm]
    error: Callable[[Tensor], float]
    """Root mean square error of a result relative to float64."""
    base: str
    """The arm that the others are divided by."""


class Workload(Protocol):
    """Module of a workload."""

    @staticmethod
    def cases(device: torch.device, sizes: Sizes) -> Iterator[Case]:
        """Yield the cases; the tensors of one may be freed when the next is asked for."""


class Ceilings(NamedTuple):
    """What the device can do, measured."""

    bytes_per_s: float
    """Device copy, counting bytes read and written."""
    flops_per_s: float
    """A large float32 product of the vendor's library."""
    tensor_flops_per_s: float
    """The same in tf32; the float32 rate where there is none."""


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
    time_over_base: float
    time_over_base_low: float
    time_over_base_high: float
    roof_ms: float
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
    made: dict[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, object]:
        """Return one value a column."""
        values: dict[str, object] = asdict(self)
        del values["made"]
        return values | self.made


def run(names: Iterable[str], device: torch.device, sizes: Sizes, repetitions: int) -> Iterator[Row]:
    """Run workloads and yield their rows case by case.

    Args:
        names: keys of ``WORKLOADS``.
        device: CUDA, HIP or CPU.
        sizes: which cases.
        repetitions: timed runs of each arm.

    Raises:
        UserError: an unknown workload, or no such device.
    """
    modules = []
    for name in names:
        if name not in WORKLOADS:
            raise UserError(f"unknown workload {name}; there are {', '.join(WORKLOADS)}")
        modules.append((name, cast(Workload, importlib.import_module(WORKLOADS[name]))))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU is visible to PyTorch; try --device cpu --sizes small to see the benchmark work")
    ceilings = measure_ceilings(device)
    for name, module in modules:
        for case in module.cases(device, sizes):
            yield from measure(name, case, device, ceilings, repetitions)


def measure(workload: str, case: Case, device: torch.device, ceilings: Ceilings, repetitions: int) -> list[Row]:
    """Time the arms of a case.

    Each round runs every arm once, in alternating order, so that a drift of the clock meets all alike. The
    base runs twice a round, the second time as an arm of its own: its ratio must be 1 within its interval,
    and how far that reaches is what a ratio can be trusted to.
    """
    base = next(arm for arm in case.arms if arm.name == case.base)
    arms = [*case.arms, Arm(f"{base.name} (again)", base.run, base.precision, base.cost)]
    errors = [case.error(arm.run()) for arm in arms]
    peaks = [_peak_extra_bytes(arm.footprint, device) for arm in arms]
    times = interleave([arm.run for arm in arms], device, repetitions)
    base_times = times[arms.index(base)]
    roof = max(case.minimum.bytes / ceilings.bytes_per_s, case.minimum.flops / ceilings.flops_per_s)
    made = {key: str(value) for key, value in provenance.stamp().items() if key in ("commit", "created_at", "python")}
    made |= {name: version for name, version in provenance.library_versions().items() if name in ("torch", "triton")}
    rows = []
    for arm, error, peak, seconds in zip(arms, errors, peaks, times, strict=True):
        low, middle, high = interval(seconds)
        ratio = interval([a / b for a, b in zip(seconds, base_times, strict=True)])
        rows.append(
            Row(
                device=device_name(device), workload=workload, case=case.name, arm=arm.name, precision=arm.precision,
                median_ms=middle * 1e3, low_ms=low * 1e3, high_ms=high * 1e3, repetitions=repetitions,
                time_over_base=ratio[1], time_over_base_low=ratio[0], time_over_base_high=ratio[2],
                roof_ms=roof * 1e3, score=roof / middle, rms_error=error,
                min_gbytes=case.minimum.bytes / 1e9, min_gflop=case.minimum.flops / 1e9,
                gbyte_per_s=case.minimum.bytes / middle / 1e9, tflop_per_s=case.minimum.flops / middle / 1e12,
                own_gbytes=arm.cost.bytes / 1e9 if arm.cost else math.nan,
                own_gflop=arm.cost.flops / 1e9 if arm.cost else math.nan,
                peak_extra_mbytes=peak / 1e6, registers=arm.registers,
                copy_gbyte_per_s=ceilings.bytes_per_s / 1e9, float32_tflop_per_s=ceilings.flops_per_s / 1e12,
                tf32_tflop_per_s=ceilings.tensor_flops_per_s / 1e12, made=made,
            )
        )  # fmt: skip
    return rows


def interleave(functions: list[Callable[[], object]], device: torch.device, repetitions: int) -> list[list[float]]:
    """Time functions in rounds, A B C, C B A, A B C ...; return the seconds of each."""
    for function in functions:
        for _ in range(3):
            function()
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(repetitions):
        order = range(len(functions)) if turn % 2 == 0 else reversed(range(len(functions)))
        pending = [(index, _start(functions[index], device)) for index in order]
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
    size = 8192 if gpu else 512
    a, b = torch.randn((2, size, size), device=device)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        copy, product = (
            median(times)
            for times in interleave([lambda: target.copy_(source), lambda: torch.mm(a, b)], device, 9 if gpu else 3)
        )
        torch.set_float32_matmul_precision("high")
        (tensor_times,) = interleave([lambda: torch.mm(a, b)], device, 9 if gpu else 3)
    finally:
        torch.set_float32_matmul_precision(precision)
    flops = 2 * size**3
    return Ceilings(2 * source.nbytes / copy, flops / product, flops / median(tensor_times))


def device_name(device: torch.device) -> str:
    """Return the device's name as results carry it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def columns() -> list[str]:
    """Return the CSV's columns."""
    return [f.name for f in fields(Row) if f.name != "made"] + ["commit", "created_at", "python", "torch", "triton"]


def table(rows: list[Row]) -> str:
    """Return the rows as text, a block for each case."""
    lines: list[str] = []
    for row in rows:
        heading = f"{row.workload}  {row.case}  (roof {row.roof_ms:.3f} ms on {row.device})"
        if heading not in lines:
            titles = f"  {'arm':<16}{'ms':>9}{'over base':>11}{'95 %':>15}{'of roof':>9}{'rms error':>11}"
            lines += ["", heading, titles]
        lines.append(
            f"  {row.arm:<16}{row.median_ms:>9.3f}{row.time_over_base:>11.3f}"
            f"{f'{row.time_over_base_low:.3f}-{row.time_over_base_high:.3f}':>15}{row.score:>9.0%}{row.rms_error:>11.1e}"
        )
    return "\n".join(lines[1:])


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
