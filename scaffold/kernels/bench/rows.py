"""The result, one row for each arm of each case: as CSV, and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields


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
