"""Which implementations of the kernels served a training, on all of its ranks."""

from __future__ import annotations

import logging
from typing import Any

from scaffold.kernels import ladder
from scaffold.parallel.team import Team

log = logging.getLogger("scaffold")


def gather(team: Team) -> dict[str, Any]:
    """Return the calls served so far, as :class:`scaffold.records.Kernels` has them. Collective."""
    calls = team.exchange(ladder.served())
    rungs = [{op: sorted(counts) for op, counts in of_rank.items()} for of_rank in calls]
    return {"calls": calls[0], "differing_ranks": [rank for rank in range(team.size) if rungs[rank] != rungs[0]]}


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
