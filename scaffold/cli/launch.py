"""The verb about launching: check-launch."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.cli.common import Verbs, add_ranks_argument, add_verb, at_least_one, open_console, told_once

if TYPE_CHECKING:
    from rich.console import Console

    from scaffold.parallel.launch import Context
    from scaffold.parallel.probe import Bandwidth, RankFacts
    from scaffold.parallel.team import Team

_SPEAKING_S = 1.0


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    check = add_verb(
        verbs,
        "check-launch",
        _check_launch,
        "Show where a launcher has put each rank and how fast the ranks sum; refuse ranks that do not find each other.",
    )
    check.epilog = (
        "Exit codes: 0 the ranks form one world; 2 they do not (another number, N singletons, another number of"
        " hosts, a rank without a device of its own); 75 a rank hangs or died, and which is told;"
        " 1 a wrong sum. Launch it as the workflow launches a training:"
        " LAUNCHER python -m mpi4py -m scaffold check-launch --ranks N"
    )
    add_ranks_argument(check)
    check.add_argument("--nodes", type=at_least_one, metavar="M", help="number of hosts; any other is refused")
    check.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to this file")
    check.add_argument(
        "--timeout", type=at_least_one, default=60, metavar="S", help="seconds to wait for a rank that hangs"
    )


def _check_launch(arguments: argparse.Namespace) -> None:
    from scaffold.errors import ExitCode
    from scaffold.parallel import environment, launch, mpi
    from scaffold.parallel.watchdog import watchdog
    from scaffold.progress import setup_logging

    limit = arguments.timeout
    rank = environment.world_rank()
    name = "a rank" if rank is None else f"rank {rank}"
    waiting = (
        f"scaffold check-launch: {name} (process {os.getpid()} on {socket.gethostname()}) has waited {limit} s for the"
        " others to start MPI; a rank that does not say so hangs, or was not started"
    )
    with watchdog(limit, waiting):
        team = launch.world(arguments.ranks)
    setup_logging(team.rank, arguments.verbose)
    os.environ[launch.TIMEOUT_VARIABLE] = str(limit)
    with _ended_together(team), told_once(arguments.verb, team):
        mpi.roll_call(team, limit)
        context = launch.join(team, arguments.ranks)
    with _ended_together(context), told_once(arguments.verb, context):
        _check(arguments, context)
    from scaffold.parallel import ending

    ending.leave(context, ExitCode.DONE)


def _check(arguments: argparse.Namespace, context: Context) -> None:
    from scaffold import atomic, provenance
    from scaffold.errors import UserError
    from scaffold.parallel import probe
    from scaffold.wording import count

    ranks = context.exchange(probe.own_facts(context))
    console = open_console() if context.rank == 0 else None
    with context.together("showing the ranks"):
        if console is not None:
            _show_ranks(console, context, ranks)
    measured = list(probe.bandwidths(context, arguments.timeout))
    doubts = probe.doubts(ranks)
    with context.together("reporting"):
        if console is not None:
            _show_bandwidths(console, measured)
            for doubt in doubts:
                console.print(f"doubtful: {doubt}", markup=False, highlight=False)
            if arguments.json is not None:
                content = probe.to_json(context, ranks, measured)
                atomic.write_json(arguments.json, {**content, "doubts": doubts, "provenance": provenance.stamp()})
    with context.together("counting hosts"):
        hosts = list(dict.fromkeys(context.hosts))
        if arguments.nodes not in (None, len(hosts)):
            raise UserError(
                f"the ranks run on {count(len(hosts), 'host')} ({', '.join(hosts)}), but --nodes {arguments.nodes} was"
                " given; an mpiexec that does not know the allocation starts all ranks on the first host"
            )


@contextmanager
def _ended_together(team: Team) -> Iterator[None]:
    """End the whole job where a rank is silent or dead, which no collective would survive; rank 0 tells if it can."""
    from scaffold.parallel import ending
    from scaffold.parallel.launch import LostRankError
    from scaffold.parallel.mpi import SilentRankError

    try:
        yield
    except (SilentRankError, LostRankError) as error:
        if team.rank == 0 or isinstance(error, LostRankError) or 0 in error.ranks:
            print(f"scaffold check-launch: {error}", file=sys.stderr, flush=True)
        # The first to end has its launcher kill the others, and may lose what was not yet passed on.
        time.sleep(_SPEAKING_S)
        ending.abort(team, int(error.exit_code))


def _show_ranks(console: Console, context: Context, ranks: Sequence[RankFacts]) -> None:
    from rich.table import Table

    from scaffold.parallel.probe import ranges
    from scaffold.wording import count

    world = context.describe()
    table = Table(title=f"{count(context.size, 'rank')} on {count(world['hosts'], 'host')}", title_justify="left")
    for column in ("rank", "host", "local rank", "device", "CPUs it may use", "process"):
        table.add_column(column)
    for facts in ranks:
        device = f"{facts.device} {facts.device_id}".strip()
        cpus = f"{ranges(facts.cpus)} ({len(facts.cpus)} of {facts.host_cpus})"
        local = f"{facts.local_rank} of {facts.local_size}"
        table.add_row(str(facts.rank), facts.host, local, device, cpus, str(facts.pid))
    console.print(table)
    console.print(
        f"launched by {world['launcher']}, MPI library {world['mpi_library'] or 'none'}, backend {world['backend']},"
        f" {count(world['threads'], 'thread')} per rank, job {ranks[0].job or 'none'}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _show_bandwidths(console: Console, measured: Sequence[Bandwidth]) -> None:
    from rich.table import Table

    if not measured:
        return
    table = Table(
        title=f"All-reduce, median of {measured[0].repeats}", title_justify="left",
        caption="algorithm = bytes / time; bus = algorithm * 2 (n - 1) / n for n ranks", caption_justify="left",
    )  # fmt: skip
    for column in ("group", "bytes", "time, us", "fastest", "slowest", "algorithm, GB/s", "bus, GB/s"):
        table.add_column(column, justify="left" if column == "group" else "right")
    for row in measured:
        times = (f"{1e6 * seconds:,.1f}" for seconds in (row.median_s, row.min_s, row.max_s))
        speeds = (f"{speed:.3g}" for speed in (row.algorithm_gb_s, row.bus_gb_s))
        table.add_row(f"{row.group} ({row.backend})", f"{row.bytes:,}", *times, *speeds)
    console.print(table)
