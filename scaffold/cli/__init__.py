"""The command line: one verb a stage.

``fractals``, ``dataset``, ``train``, ``report`` and ``settings`` each register their verbs. They import what they run
inside the verb's function, so that ``--help`` is fast and needs neither torch nor MPI.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from scaffold import __version__
from scaffold.cli import dataset, fractals, report, settings, train
from scaffold.errors import ExitCode, ScaffoldError
from scaffold.progress import setup_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code (see :class:`scaffold.errors.ExitCode`)."""
    arguments = build_parser().parse_args(argv)
    setup_logging(verbose=arguments.verbose)
    try:
        return int(arguments.function(arguments) or ExitCode.DONE)
    except ScaffoldError as error:
        logging.getLogger("scaffold").debug("", exc_info=error)
        print(f"scaffold {arguments.verb}: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        return ExitCode.DONE
    except KeyboardInterrupt:
        print(f"scaffold {arguments.verb}: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="scaffold",
        description="A scale-free fractal benchmark for deep-learning systems.",
        epilog="The stages are usually run by Snakemake: snakemake --profile profiles/local",
    )
    parser.add_argument("--version", action="version", version=f"scaffold {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show debug lines and causes of errors")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for group in (settings, fractals, dataset, train, report):
        group.register(verbs)
    return parser
