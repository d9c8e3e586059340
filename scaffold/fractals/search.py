"""The search for categories: which random systems give clouds worth learning.

Candidate k is a pure function of (seed, k), and a library is the first n accepted candidates in order
of k. Ranks and threads examine batches of candidates side by side; the verdicts are merged in order, and
what lies behind the last accepted candidate is forgotten. So nothing in the result depends on how many
ranks, threads or batches there were, and a library of 50 begins with the library of 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scaffold import rng
from scaffold.config import RunConfig
from scaffold.config.identity import library_settings
from scaffold.errors import UserError
from scaffold.fractals import ifs
from scaffold.fractals.categories import Library
from scaffold.fractals.ifs import Verdict
from scaffold.parallel.team import Solo, Team
from scaffold.progress import track

PATIENCE = 200_000
"""Candidates in a row without a category before the search gives up. With the default threshold one in
33 is accepted, with twice that one in 1000."""

_BATCH_POINTS = 1 << 22
_BATCH_CANDIDATES = (4, 4096)
"""A batch has 4 M points a thread (some 30 ms), within these bounds of candidates a thread."""


def candidate(seed: int, number: int) -> NDArray[np.float64]:
    """Return candidate ``number`` of the search under ``seed``, (2, 13) float64."""
    return ifs.random_system(number, _coefficients_key(seed))


def find_categories(config: RunConfig, team: Team | None = None, threads: int = 1, patience: int = PATIENCE) -> Library:
    """Search the categories of ``config``. Collective.

    Args:
        config: gives seed, n_categories, point_num, normalize and variance_threshold.
        team: the ranks that share the work; one process by default.
        threads: threads of each rank.
        patience: give up after so many candidates in a row without a category.

    Returns:
        The library, the same on every rank. Its description counts the candidates up to the last
        accepted one, by verdict.

    Raises:
        UserError: no cloud can pass, or none did for ``patience`` candidates; says how they failed.
    """
    team = team or Solo()
    if config.variance_threshold >= config.normalize**2:
        raise UserError(
            f"variance_threshold = {config.variance_threshold}: no cloud can exceed it, since the variance within"
            f" [-normalize, normalize] is at most normalize^2 = {config.normalize**2:g}"
        )
    selection = Selection(config.seed, config.n_categories, patience)
    with closing(_verdicts(config, team, threads)) as verdicts:
        accepted = selection.take(verdicts)
        for _ in track(accepted, "searching categories", config.n_categories, team.rank):
            pass
    return Library(
        np.array(selection.params),
        selection.candidates,
        {
            "source": "search",
            "settings": library_settings(config),
            "points": config.point_num,
            "candidates": selection.counts.total(),
            "verdicts": {verdict.name.lower(): selection.counts[verdict] for verdict in Verdict},
        },
    )


class Selection:
    """The categories accepted so far, and the verdicts counted up to the last one.

    Args:
        seed: seed of the search.
        wanted: number of categories to find.
        patience: candidates in a row without a category before giving up.
    """

    def __init__(self, seed: int, wanted: int, patience: int) -> None:
        self.params: list[NDArray[np.float64]] = []
        self.candidates: list[int] = []
        self.counts: Counter[Verdict] = Counter()
        self._seed, self._wanted, self._patience = seed, wanted, patience
        self._known: set[bytes] = set()

    def take(self, verdicts: Iterator[Verdict]) -> Iterator[int]:
        """Yield the number of each candidate that becomes a category, until there are enough.

        Args:
            verdicts: of candidates 0, 1, 2, ...; without end.

        Raises:
            UserError: ``patience`` candidates in a row were rejected.
        """
        since: Counter[Verdict] = Counter()
        for number, verdict in enumerate(verdicts):
            verdict = self._without_repeats(number, verdict)
            self.counts[verdict] += 1
            since[verdict] += 1
            if verdict is Verdict.ACCEPTED:
                since.clear()
                yield number
                if len(self.params) == self._wanted:
                    return
            elif since.total() >= self._patience:
                raise UserError(self._give_up(since))

    def _without_repeats(self, number: int, verdict: Verdict) -> Verdict:
        if verdict is not Verdict.ACCEPTED:
            return verdict
        params = candidate(self._seed, number)
        if params.tobytes() in self._known:
            return Verdict.DUPLICATE
        self._known.add(params.tobytes())
        self.params.append(params)
        self.candidates.append(number)
        return verdict

    def _give_up(self, since: Counter[Verdict]) -> str:
        causes = ", ".join(f"{count} {verdict.name.lower()}" for verdict, count in since.most_common())
        return (
            f"found {len(self.params)} of {self._wanted} categories, then none among {since.total()} candidates"
            f" ({causes}); lower variance_threshold or n_categories, or raise normalize or problem_scale"
        )


def _verdicts(config: RunConfig, team: Team, threads: int) -> Generator[Verdict, None, None]:
    """Yield the verdicts of candidates 0, 1, 2, ..., without end. Collective: all ranks take equally many."""
    low, high = _BATCH_CANDIDATES
    share = threads * min(max(_BATCH_POINTS // config.point_num, low), high)
    first = 0
    with ThreadPoolExecutor(threads) as pool:
        while True:
            mine = np.empty(share, np.int8)
            with team.together("examining candidates"):
                _examine(config, first + team.rank * share, mine, pool, threads)
            for part in team.exchange(mine):
                yield from map(Verdict, part)
            first += team.size * share


def _examine(config: RunConfig, first: int, verdicts: NDArray[np.int8], pool: ThreadPoolExecutor, threads: int) -> None:
    """Judge candidates ``first`` and following in ``pool``, in four pieces a thread to even out the load."""
    coefficients, clouds = _coefficients_key(config.seed), _clouds_key(config.seed)
    starts = np.linspace(0, len(verdicts), min(4 * threads, len(verdicts)) + 1, dtype=int)
    futures = [
        pool.submit(
            ifs.examine,
            first + int(start),
            verdicts[start:end],
            coefficients,
            clouds,
            config.point_num,
            config.normalize,
            config.variance_threshold,
        )
        for start, end in pairwise(starts)
    ]
    for future in futures:
        future.result()


def _coefficients_key(seed: int) -> int:
    return rng.key(seed, "candidate coefficients")


def _clouds_key(seed: int) -> int:
    return rng.key(seed, "candidate clouds")
