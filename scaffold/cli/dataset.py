"""Verbs of the data set: render, publish, verify-dataset."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from scaffold.cli.common import Verbs, add_ranks_argument, add_selection_arguments, add_verb, select_config
from scaffold.errors import ExitCode

_log = logging.getLogger(__name__)


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    render = add_verb(verbs, "render", _render, "Render one part of a data set from point clouds.")
    add_selection_arguments(render, "dataset")
    render.add_argument("--part", required=True, type=int, metavar="P", help="number of the part, from 0")
    render.add_argument("--instances", required=True, type=Path, metavar="DIR", help="folder of the point clouds")
    render.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the part")
    add_ranks_argument(render)

    publish = add_verb(verbs, "publish", _publish, "Check all parts of a data set, then write its meta.yaml.")
    add_selection_arguments(publish, "dataset")
    publish.add_argument("--parts", required=True, type=Path, metavar="DIR", help="folder of the parts")
    publish.add_argument("--output", required=True, type=Path, metavar="FILE", help="meta.yaml, beside the parts")

    summary = "Read every byte of a data set and name each missing, truncated or altered file and sample."
    verify = add_verb(verbs, "verify-dataset", _verify, summary)
    verify.add_argument("directory", type=Path, metavar="DIR", help="folder with the meta.yaml")
    verify.add_argument("--threads", type=int, default=1, metavar="N", help="parts read at the same time")


def _render(arguments: argparse.Namespace) -> int:
    from scaffold.dataset.plan import adjustments
    from scaffold.dataset.render import render_part
    from scaffold.parallel.mpi import team
    from scaffold.parallel.team import RankError
    from scaffold.progress import setup_logging

    ranks = team(arguments.ranks)
    setup_logging(ranks.rank, arguments.verbose)
    try:
        with ranks.together("reading the settings"):
            config = select_config(arguments, "dataset")
        if arguments.part == 0 and ranks.rank == 0:
            for note in adjustments(config):
                _log.warning("%s", note)
        render_part(config, arguments.part, arguments.instances, arguments.output, ranks)
    except RankError as error:
        # All ranks raise the same. Only rank 0 speaks, and none leaves before it has: under
        # `-m mpi4py` the first to exit with an error aborts the others.
        if ranks.rank == 0:
            print(f"scaffold {arguments.verb}: {error}", file=sys.stderr, flush=True)
        ranks.barrier()
        return error.exit_code
    if ranks.rank == 0:
        _log.info("rendered part %d into %s", arguments.part, arguments.output)
    return ExitCode.DONE


def _publish(arguments: argparse.Namespace) -> None:
    from scaffold.dataset.publish import publish

    meta = publish(select_config(arguments, "dataset"), arguments.parts, arguments.output)
    print(f"{arguments.output}: {meta.n_training} + {meta.n_validation} samples, digest {meta.digest}")


def _verify(arguments: argparse.Namespace) -> int:
    from scaffold.dataset.layout import INDEX, rebuild_command
    from scaffold.dataset.verify import verify

    findings = verify(arguments.directory, arguments.threads)
    for finding in findings:
        print(finding)
    if not findings:
        print(f"{arguments.directory}: every byte is as it was made")
        return ExitCode.DONE
    damaged = sorted({finding.path.parent / INDEX for finding in findings})
    print(f"{len(findings)} problems; rebuild the damaged parts with:")
    for index in damaged:
        print(f"  {rebuild_command(index)}")
    return ExitCode.DAMAGED
