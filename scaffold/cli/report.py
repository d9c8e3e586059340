"""Verbs of the report: fom, summary, compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from scaffold.cli.common import Verbs, add_verb, open_console
from scaffold.errors import ExitCode


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    fom = add_verb(verbs, "fom", _fom, "Join the seeds of a run at one rank count into its figure of merit.")
    fom.add_argument(
        "--results", required=True, nargs="+", metavar="DIR", help="results/runs/RUN/ranksN/seedS, one per seed"
    )
    fom.add_argument("--output", required=True, metavar="FILE", help="fom.json to write")

    summary = add_verb(verbs, "summary", _summary, "Show the summary of a study, or write it from fom.json files.")
    summary.add_argument("summary", metavar="FILE", help="results/summary.csv")
    summary.add_argument(
        "--foms", nargs="+", metavar="FOM", help="write FILE from these fom.json, instead of showing it"
    )
    summary.add_argument("--page", metavar="HTML", help="with --foms: also write it as a page, for the report")

    compare = add_verb(
        verbs, "compare", _compare,
        "Compare two figures of merit. Exit code 2 if the keys that must match do not.",
    )  # fmt: skip
    compare.add_argument("a", metavar="A", help="fom.json to compare with")
    compare.add_argument("b", metavar="B", help="fom.json to judge")
    compare.add_argument(
        "--force", action="store_true", help="show the ratios of a pair that is not comparable, and exit with 0"
    )
    compare.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _fom(arguments: argparse.Namespace) -> None:
    from scaffold.reporting import kernels
    from scaffold.reporting.fom import headline, write_fom

    figure = write_fom(map(Path, arguments.results), Path(arguments.output))
    print(headline(figure))
    print(f"  kernels: {kernels.in_words(figure.kernels)}")
    for warning in figure.warnings:
        print(f"  note: {warning}")


def _summary(arguments: argparse.Namespace) -> None:
    from scaffold.reporting.page import write_page
    from scaffold.reporting.tables import show_summary, write_summary

    path = Path(arguments.summary)
    if arguments.foms:
        table = write_summary(map(Path, arguments.foms), path)
        if arguments.page:
            write_page(table, Path(arguments.page))
        print(f"{path}: the summary of {len(arguments.foms)} figures of merit")
    else:
        show_summary(path, open_console())


def _compare(arguments: argparse.Namespace) -> int:
    import json

    from scaffold.reporting.compare import compare_files, refusal, show

    a, b = Path(arguments.a), Path(arguments.b)
    comparison = compare_files(a, b)
    if arguments.json:
        print(json.dumps(comparison.to_json(), indent=2))
    else:
        show(comparison, a, b, open_console(), arguments.force)
    if comparison.comparable or arguments.force:
        return ExitCode.DONE
    raise refusal(comparison)
