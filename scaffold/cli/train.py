"""Verbs of training: train, clean-run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.cli.common import Verbs, add_ranks_argument, add_study_arguments, add_verb, load_study, tell, told_once
from scaffold.errors import ScaffoldError, UserError

if TYPE_CHECKING:
    from scaffold.config import Job
    from scaffold.training.worker import Build


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    train = add_verb(verbs, "train", run, "Train one run until its target Dice is met; continues a killed training.")
    add_study_arguments(train)
    add_ranks_argument(train)
    train.add_argument("--seed", type=int, metavar="S", help="training seed; by default the run's first")
    train.add_argument("--data", required=True, metavar="META", help="meta.yaml of the data set")
    train.add_argument("--output", required=True, metavar="DIR", help="where the results go; work/ lies below it")
    train.add_argument("--identity", metavar="HEX", help="training identity that the workflow planned with")
    train.add_argument(
        "--minutes", type=float, metavar="M",
        help="time limit of the job: stop, with everything saved, well before it (exit 75)",
    )  # fmt: skip
    train.add_argument(
        "--threads", type=int, metavar="T", help="CPU threads per rank; else OMP_NUM_THREADS, else a fair share"
    )
    train.add_argument(
        "--launcher", metavar="PREFIX",
        help="what this command was launched with, for restart.sh in the work folder; by default a guess",
    )  # fmt: skip

    clean = add_verb(verbs, "clean-run", _clean_run, "Remove the checkpoints and records of a training.")
    clean.add_argument("directory", metavar="DIR", help="results/runs/RUN/ranksN/seedS, or a work folder")
    clean.add_argument(
        "--keep-checkpoints", action="store_true", help="only forget that it failed, so that it can continue"
    )


def run(arguments: argparse.Namespace, build: Build | None = None) -> None:
    """Run the verb ``train`` and leave the process with its exit code.

    Args:
        arguments: as they were parsed.
        build: makes the learner; by default the trainer's own.
    """
    start = time.monotonic()
    from scaffold.parallel import ending, launch
    from scaffold.progress import setup_logging

    world = launch.world(arguments.ranks)
    setup_logging(world.rank, arguments.verbose)
    with told_once(arguments.verb, world):
        with world.together("reading the arguments"):
            _check(arguments)
        context = launch.join(world, arguments.ranks, arguments.threads)
    try:
        job = context.share(lambda: _job(arguments), "reading the study")
    except ScaffoldError as error:
        if context.size == 1:
            raise
        tell(arguments.verb, error, context.rank)
        ending.leave(context, error.exit_code)

    from scaffold.training import worker
    from scaffold.training.restart import Command

    deadline = _deadline(start, arguments.minutes, job.config.max_runtime)
    command = Command(Path(arguments.data), Path(arguments.output), arguments.launcher, arguments.minutes)
    code = worker.run(context, job, command, deadline, build or worker.build_learner)
    ending.leave(context, code)


def _deadline(start: float, limit: float | None, max_runtime: float | None) -> float | None:
    """Return when to stop, on the clock of ``start``; None for never.

    A scheduler's clock has run since the job began, before Snakemake, the launcher and Python had
    started, and the job must have ended by the limit: so a minute of it is not trained in, or a
    quarter where that is less.

    Args:
        start: when this process began, seconds.
        limit: of the scheduler for the whole job, minutes.
        max_runtime: the study's own, minutes.
    """
    limits = [] if limit is None else [limit - min(1.0, limit / 4)]
    limits += [] if max_runtime is None else [max_runtime]
    return start + 60 * min(limits) if limits else None


def _check(arguments: argparse.Namespace) -> None:
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise UserError(f"--seed {arguments.seed}: must be at least 0 and below 2^63")
    for name in ("ranks", "threads", "minutes"):
        value = getattr(arguments, name)
        # In this form a minute that is no number is refused too.
        if value is not None and not value > 0:
            raise UserError(f"--{name} {value}: must be greater than 0")


def _job(arguments: argparse.Namespace) -> Job:
    """Return the training that the arguments name.

    Raises:
        UserError: there is no such run, it cannot run on so many ranks, or the study has changed.
    """
    from scaffold.config import ConfigError, Job, training_identity
    from scaffold.config.checks import cross_check

    study = load_study(arguments)
    spec = study.run(arguments.run)
    name = arguments.run or next(iter(study.runs))
    problems = cross_check(spec.config, arguments.ranks)
    if problems:
        raise ConfigError(arguments.config, problems)
    identity = training_identity(spec.config)
    if arguments.identity not in (None, identity):
        raise UserError(
            f"{arguments.config}: the study changed since Snakemake planned this job"
            f" (training identity {identity}, planned {arguments.identity}); run Snakemake again"
        )
    seed = spec.seeds[0] if arguments.seed is None else arguments.seed
    return Job(name, spec.config, arguments.ranks, seed, spec.resources)


def _clean_run(arguments: argparse.Namespace) -> None:
    from scaffold.training import workdir

    for folder in workdir.clean(Path(arguments.directory), arguments.keep_checkpoints):
        print(f"{'forgave the failure in' if arguments.keep_checkpoints else 'removed'} {folder}")
