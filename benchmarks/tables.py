"""How the benchmarks of the CPU keep what they measured."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scaffold import atomic, provenance


def write_with_conditions(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV, and beside it as JSON the machine and the code that they were measured with."""
    with atomic.write(path, "w") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    conditions = {"cpu": provenance.cpu_name(), "cores": os.cpu_count(), **provenance.stamp()}
    atomic.write_json(path.with_suffix(".json"), conditions)
