"""The command line: one verb a stage.

``fractals``, ``dataset``, ``train``, ``report``, ``kernels``, ``launch`` and ``settings`` each register their
verbs. They import what they run inside the verb's function, so that ``--help`` is fast and needs neither torch
nor MPI.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from scaffold import __version__
from scaffold.cli import dataset, fractals, kernels, launch, report, settings, train
from scaffold.cli.common import tell
from scaffold.config.problems import nearest
from scaffold.errors import ExitCode, ScaffoldError, UserError
from scaffold.progress import setup_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code (see :class:`scaffold.errors.ExitCode`)."""
    verb = ""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        verb = arguments.verb
        setup_logging(verbose=arguments.verbose)
        code = int(arguments.function(arguments) or ExitCode.DONE)
        sys.stdout.flush()
        return code
    except ScaffoldError as error:
        logging.getLogger("scaffold").debug("", exc_info=error)
        tell(verb, error)
        return int(error.exit_code)
    except BrokenPipeError:
        # The reader has what it wanted (`| head`); the interpreter must not flush again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except KeyboardInterrupt:
        print(f"scaffold {verb}: interrupted", file=sys.stderr)
        return 130


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Raises:
        UserError: an unknown verb or option; the message has the nearest one that there is.
        SystemExit: with code 2 for any other mistake, with 0 after ``--help`` or ``--version``.
    """
    parser, verbs = build_parser()
    # No option before the verb takes a value.
    first = next((text for text in argv if not text.startswith("-")), None)
    if first is not None and first not in verbs:
        raise UserError(f"unknown verb {first}{nearest(first, verbs)} (scaffold --help lists all)")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        options = [text for action in verbs[arguments.verb]._actions for text in action.option_strings]
        hint = nearest(unknown[0].partition("=")[0], options)
        raise UserError(f"{arguments.verb}: unknown argument {unknown[0]}{hint} (see scaffold {arguments.verb} --help)")
    return arguments


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and that of each verb."""
    parser = argparse.ArgumentParser(
        prog="scaffold",
        description="A scale-free fractal benchmark for deep-learning systems.",
        epilog="The stages are usually run by Snakemake: snakemake --profile profiles/local",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"scaffold {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show debug lines and causes of errors")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for group in (settings, fractals, dataset, train, report, kernels, launch):
        group.register(verbs)
    return parser, dict(verbs.choices)
