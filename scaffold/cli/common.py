"""What several verbs share: arguments, teams of ranks, and how they speak to the user."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scaffold.config import RunConfig, RunSpec, Study, dataset_name, library_name
from scaffold.errors import ScaffoldError, UserError
from scaffold.parallel.mpi import check_size, world
from scaffold.parallel.team import RankError, Team
from scaffold.progress import setup_logging

if TYPE_CHECKING:
    from rich.console import Console

Verbs = Any
"""What ``ArgumentParser.add_subparsers`` returns."""

_PIPE_WIDTH = 200


def add_verb(
    verbs: Verbs, name: str, function: Callable[[argparse.Namespace], int | None], summary: str
) -> argparse.ArgumentParser:
    """Add the verb ``name`` that runs ``function``; return its parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.set_defaults(function=function)
    return parser


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, ``--run`` and ``--set``."""
    parser.add_argument("--config", required=True, metavar="FILE", help="study file")
    parser.add_argument("--run", metavar="NAME", help="run of the study; may be left out when there is only one")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE",
        help="override a key; may be repeated",
    )  # fmt: skip


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--ranks``."""
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N",
        help="number of ranks that the launcher starts; anything else is refused",
    )  # fmt: skip


def add_threads_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add ``--threads``, at least 1."""
    parser.add_argument("--threads", type=at_least_one, default=1, metavar="T", help=meaning)


def at_least_one(text: str) -> int:
    """Return the integer of at least 1 that an argument is."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def load_study(arguments: argparse.Namespace) -> Study:
    """Return the study that the arguments name, with their overrides."""
    return Study.load(arguments.config, arguments.overrides)


def load_run(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the arguments name."""
    return load_study(arguments).run(arguments.run)


def add_selection_arguments(parser: argparse.ArgumentParser, product: str) -> None:
    """Add ``--config``, ``--set``, ``--run`` and ``--library`` or ``--dataset`` (``product``).

    Snakemake names the product, so that renaming a run redoes nothing; a person names the run.
    """
    add_study_arguments(parser)
    parser.add_argument(f"--{product}", metavar="NAME", help=f"name of the {product}; takes the place of --run")


def select_config(arguments: argparse.Namespace, product: str) -> RunConfig:
    """Return the settings of the ``product`` ("library" or "dataset") that the arguments name.

    Raises:
        UserError: no run of the study makes a product of that name (its settings have changed).
    """
    name = getattr(arguments, product)
    if name is None:
        return load_run(arguments).config
    name_of = {"library": library_name, "dataset": dataset_name}[product]
    made = {name_of(spec.config): spec.config for spec in load_study(arguments).runs.values()}
    if name not in made:
        raise UserError(
            f"no run of {arguments.config} makes the {product} {name} (it makes {', '.join(made)});"
            " the study has changed: run Snakemake again"
        )
    return made[name]


def open_console() -> Console:
    """Return standard output as rich writes to it: in colour on a terminal, plain in a pipe."""
    from rich.console import Console

    # A pipe has no width; rich would otherwise fold the tables at 80 columns.
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH, no_color=True)


def tell(verb: str, error: ScaffoldError, rank: int = 0) -> None:
    """Print on standard error what ended ``verb``: rank 0 the message, a rank with a defect its traceback before."""
    if isinstance(error, RankError) and error.defect is not None:
        traceback.print_exception(error.defect)
    if rank == 0:
        print(f"{f'scaffold {verb}'.rstrip()}: {error}", file=sys.stderr, flush=True)


@contextmanager
def joined_team(arguments: argparse.Namespace) -> Iterator[Team]:
    """Yield the team of ``--ranks`` processes; what all of them raise together, rank 0 alone tells.

    Raises:
        SystemExit: on several ranks, after a :class:`RankError`, with its exit code: the launcher
            started another number of ranks, or one failed in the block.
    """
    members = world(arguments.ranks)
    setup_logging(members.rank, arguments.verbose)
    with told_once(arguments.verb, members):
        with members.together("starting"):
            check_size(members.size, arguments.ranks)
        yield members


@contextmanager
def told_once(verb: str, members: Team) -> Iterator[None]:
    """Let rank 0 alone tell what all ``members`` raise together in the block, and leave.

    Raises:
        SystemExit: on several ranks, after a :class:`RankError`, with its exit code.
    """
    try:
        yield
    except RankError as error:
        if members.size == 1:
            raise
        tell(verb, error, members.rank)
        # None leaves before rank 0 has spoken: under `-m mpi4py` the first to exit with an error aborts the others.
        members.barrier()
        raise SystemExit(int(error.exit_code)) from error
