"""Verbs of the kernels: bench-kernels."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from scaffold.cli.common import Verbs, add_verb


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    bench = add_verb(
        verbs, "bench-kernels", _bench_kernels,
        "Time the kernels against their rooflines and their stock counterparts.",
    )  # fmt: skip
    bench.add_argument("--output", required=True, metavar="FILE", help="CSV to write")
    bench.add_argument("--figure", metavar="FILE", help="roofline figure to write (.png or .svg)")
    bench.add_argument(
        "--workload", action="append", dest="workloads", metavar="NAME", help="may be repeated; all if left out"
    )
    bench.add_argument("--device", default="cuda", metavar="NAME", help="cuda or cpu (default: cuda)")
    bench.add_argument(
        "--sizes", default="full", choices=("full", "small"), help="small: seconds, to see the benchmark work"
    )
    bench.add_argument("--repetitions", type=int, default=40, metavar="N", help="timed runs of each arm (default: 40)")


def _bench_kernels(arguments: argparse.Namespace) -> None:
    import torch

    from scaffold import atomic
    from scaffold.errors import UserError
    from scaffold.kernels.bench import roofline
    from scaffold.kernels.bench.rows import columns, table
    from scaffold.kernels.bench.run import run
    from scaffold.kernels.bench.workloads import WORKLOADS

    if arguments.device not in ("cuda", "cpu"):
        raise UserError(f"--device is {arguments.device}; allowed are cuda (NVIDIA and AMD) and cpu")
    if arguments.repetitions < 1:
        raise UserError(f"--repetitions is {arguments.repetitions}; at least 1 is needed")
    figure = Path(arguments.figure) if arguments.figure else None
    if figure and figure.suffix not in (".png", ".svg"):
        raise UserError(f"--figure is {figure}; its name must end in .png or .svg")
    names = arguments.workloads or list(WORKLOADS)
    rows = run(names, torch.device(arguments.device), arguments.sizes, arguments.repetitions)
    print(table(rows))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.flat() for row in rows)
    atomic.write_text(arguments.output, text.getvalue())
    if figure:
        roofline.plot(roofline.read_rows(Path(arguments.output), "scaffold bench-kernels"), figure)
