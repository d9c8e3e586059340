"""Verbs of the data set: render, publish, verify-dataset."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from scaffold.cli.common import (
    Verbs,
    add_ranks_argument,
    add_selection_arguments,
    add_threads_argument,
    add_verb,
    joined_team,
    select_config,
)
from scaffold.errors import ExitCode
from scaffold.wording import count

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
    add_threads_argument(verify, "parts read at the same time")


def _render(arguments: argparse.Namespace) -> None:
    from scaffold.dataset.plan import adjustments
    from scaffold.dataset.render import render_part

    with joined_team(arguments) as team:
        with team.together("reading the settings"):
            config = select_config(arguments, "dataset")
        if arguments.part == 0 and team.rank == 0:
            for note in adjustments(config):
                _log.warning("%s", note)
        render_part(config, arguments.part, arguments.instances, arguments.output, team)
        if team.rank == 0:
            _log.info("rendered part %d into %s", arguments.part, arguments.output)


def _publish(arguments: argparse.Namespace) -> None:
    from scaffold.dataset.publish import publish

    meta = publish(select_config(arguments, "dataset"), arguments.parts, arguments.output)
    print(f"{arguments.output}: {meta.n_training} + {meta.n_validation} samples, digest {meta.digest}")


def _verify(arguments: argparse.Namespace) -> int:
    from scaffold.dataset.layout import INDEX
    from scaffold.dataset.verify import verify
    from scaffold.remedy import rebuild_command

    findings = verify(arguments.directory, arguments.threads)
    for finding in findings:
        print(finding)
    if not findings:
        print(f"{arguments.directory}: every byte is as it was made")
        return ExitCode.DONE
    damaged = sorted({finding.path.parent / INDEX for finding in findings})
    print(f"{count(len(findings), 'problem')}; rebuild the damaged parts with:")
    for index in damaged:
        print(f"  {rebuild_command(index)}")
    return ExitCode.DAMAGED
