"""Which implementations of the kernels served the trainings behind a figure of merit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scaffold.records import Kernels
from scaffold.wording import count

NOT_RECORDED = "not recorded"


def joined(seeds: Iterable[Kernels | None]) -> Kernels | None:
    """Return the calls of all seeds, the ranks that differed in any and all switches; None if no seed has a record."""
    known = [kernels for kernels in seeds if kernels is not None]
    calls: dict[str, Counter[str]] = {}
    for kernels in known:
        for operation, counts in kernels.calls.items():
            calls.setdefault(operation, Counter()).update(counts)
    ranks = sorted({rank for kernels in known for rank in kernels.differing_ranks})
    merged = {operation: dict(counts) for operation, counts in calls.items()}
    switches = {name: word for kernels in known for name, word in kernels.switches.items()}
    return Kernels(calls=merged, differing_ranks=ranks, switches=switches) if known else None


def in_words(kernels: Kernels | None) -> str:
    """Return what served, in short: ``all triton``, or ``triton, but group_norm_relu: eager``."""
    if kernels is None or not kernels.calls:
        return NOT_RECORDED
    served = {operation: " and ".join(sorted(counts)) for operation, counts in sorted(kernels.calls.items())}
    ((usual, _),) = Counter(served.values()).most_common(1)
    others = [f"{operation}: {rungs}" for operation, rungs in served.items() if rungs != usual]
    text = f"{usual}, but {', '.join(others)}" if others else f"all {usual}"
    if kernels.differing_ranks:
        ranks = kernels.differing_ranks
        text += f"; otherwise on {count(len(ranks), 'rank')} ({', '.join(map(str, ranks))})"
    if kernels.switches:
        text += f"; with {', '.join(f'{name}={word}' for name, word in sorted(kernels.switches.items()))}"
    return text
