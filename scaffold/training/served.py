"""Which implementations of the kernels served a training, on all of its ranks."""

from __future__ import annotations

import logging
import os
from typing import Any

from scaffold.config.problems import nearest
from scaffold.kernels import ladder
from scaffold.parallel.team import Team
from scaffold.training import restart

_OURS = "SCAFFOLD_"

log = logging.getLogger("scaffold")


def gather(team: Team) -> dict[str, Any]:
    """Return the calls served so far, as :class:`scaffold.records.Kernels` has them. Collective."""
    calls = team.exchange(ladder.served())
    rungs = [{op: sorted(counts) for op, counts in of_rank.items()} for of_rank in calls]
    return {
        "calls": calls[0],
        "differing_ranks": [rank for rank in range(team.size) if rungs[rank] != rungs[0]],
        "switches": {name: os.environ[name] for name in restart.SWITCHES if name in os.environ},
    }


def warn_of_unknown_switches(team: Team) -> None:
    """Warn on rank 0 of variables that are named like ours and mean nothing: a switch misspelt, say."""
    known = [name for name in restart.KEPT if name.startswith(_OURS)]
    for name in sorted(os.environ) if team.rank == 0 else ():
        if name.startswith(_OURS) and name not in known:
            log.warning("%s is set, which no training reads%s", name, nearest(name, known))


def tell(kernels: dict[str, Any], team: Team) -> None:
    """Log on rank 0 what serves each operation and why what comes before it did not, and who differs."""
    if team.rank or not kernels["calls"]:
        return
    refusals = ladder.refusals()
    for op, counts in kernels["calls"].items():
        reasons = [f"not {rung}: {', '.join(why)}" for rung, why in refusals.get(op, {}).items()]
        log.info("%s runs as %s%s", op, " and ".join(counts), f" ({'; '.join(reasons)})" if reasons else "")
    if kernels["differing_ranks"]:
        ranks = ", ".join(map(str, kernels["differing_ranks"]))
        log.warning("rank %s: served by other kernels than rank 0; the log of each says why", ranks)
