"""The search for categories."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fractal_reference import small_config
from launching import scaffold_on

from scaffold.config import RunConfig
from scaffold.errors import UserError
from scaffold.fractals import search
from scaffold.fractals.categories import write_library
from scaffold.fractals.ifs import Verdict
from scaffold.fractals.search import Selection, find_categories


@pytest.fixture(scope="module")
def large_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that takes several batches on each of four ranks."""
    library = find_categories(small_config(n_categories=2000))
    return write_library(library, tmp_path_factory.mktemp("large"))


def test_a_longer_library_begins_with_the_shorter() -> None:
    """Growing a study's n_categories must keep the categories it has; another seed gives others."""
    short, long = find_categories(small_config(n_categories=5)), find_categories(small_config(n_categories=50))
    assert long.params.shape == (50, 2, 13)
    assert long.params[:5].tobytes() == short.params.tobytes()
    assert long.candidates[:5] == short.candidates
    assert find_categories(small_config(n_categories=5, seed=43)).params.tobytes() != short.params.tobytes()


@pytest.mark.parametrize(("threads", "batch"), [(2, 1 << 22), (3, 1 << 12), (1, 1)])
def test_threads_and_batches_change_nothing(threads: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters included: they stop at the last accepted candidate, not at the end of a batch."""
    expected = find_categories(small_config(n_categories=8))
    monkeypatch.setattr(search, "_BATCH_POINTS", batch)
    found = find_categories(small_config(n_categories=8), threads=threads)
    assert found.params.tobytes() == expected.params.tobytes()
    assert found.candidates == expected.candidates
    assert found.description == expected.description


def test_counters_tell_every_candidate_up_to_the_last_category() -> None:
    """A candidate that is not counted, or counted twice, falsifies the acceptance rate."""
    library = find_categories(small_config())
    verdicts = library.description["verdicts"]
    assert library.description["candidates"] == library.candidates[-1] + 1 == sum(verdicts.values())
    assert verdicts["accepted"] == 3
    assert verdicts["runaway"] > 0
    assert verdicts["low_variance"] > 0


def test_an_exact_duplicate_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal categories would be two labels for one shape."""
    original = search.candidate
    monkeypatch.setattr(search, "candidate", lambda seed, number: original(seed, 0 if number == 1 else number))
    selection = Selection(seed=1, wanted=2, patience=10)
    assert list(selection.take(itertools.repeat(Verdict.ACCEPTED))) == [0, 2]
    assert selection.candidates == [0, 2]
    assert selection.counts == {Verdict.ACCEPTED: 2, Verdict.DUPLICATE: 1}


def test_patience_counts_candidates_since_the_last_category() -> None:
    """A search that nothing satisfies must end, and tell why; one that is merely slow must not."""

    def verdicts() -> Iterator[Verdict]:
        yield from [Verdict.RUNAWAY] * 4 + [Verdict.ACCEPTED]
        yield from [Verdict.LOW_VARIANCE] * 4 + [Verdict.ACCEPTED]
        yield from itertools.cycle([Verdict.RUNAWAY, Verdict.LOW_VARIANCE, Verdict.LOW_VARIANCE])

    assert list(Selection(1, 2, patience=5).take(verdicts())) == [4, 9]
    message = "found 2 of 3 categories, then none among 5 candidates \\(3 low_variance, 2 runaway\\)"
    with pytest.raises(UserError, match=message):
        list(Selection(1, 3, patience=5).take(verdicts()))


def test_an_unlikely_threshold_ends_with_a_user_error() -> None:
    """variance_threshold 0.9 is allowed, and next to nothing passes it."""
    with pytest.raises(UserError, match=r"found 0 of 3 categories, then none among 3000 candidates"):
        find_categories(small_config(variance_threshold=0.9), patience=3000)


def test_an_impossible_threshold_is_refused_at_once() -> None:
    """The variance within [-n, n] is at most n^2; just below, the search does start."""
    with pytest.raises(UserError, match=r"variance_threshold = 0\.25.*at most normalize\^2 = 0\.25"):
        find_categories(small_config(variance_threshold=0.25, normalize=0.5))
    with pytest.raises(UserError, match="none among 10 candidates"):
        find_categories(small_config(variance_threshold=0.249, normalize=0.5), patience=10)


@pytest.mark.parametrize(
    ("config", "candidates", "digest"),
    [
        (small_config(), [15, 22, 63], "4d895fcae77ed053"),
        (RunConfig(), [15, 22, 63, 79, 85], "5a9ac9494bfb478a"),
    ],
)
def test_libraries_have_not_changed(config: RunConfig, candidates: list[int], digest: str) -> None:
    """If this fails, every published library has changed: raise the code version of the stage ``search``."""
    library = find_categories(config)
    assert library.candidates == candidates
    assert hashlib.sha256(library.params.tobytes()).hexdigest()[:16] == digest


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_change_no_byte(ranks: int, large_library: Path, study: Path, tmp_path: Path) -> None:
    """LLNL's library depends on the rank count; ours must not. Hazard 58: and nothing else is made."""
    output = tmp_path / "library"
    process = scaffold_on(ranks, "search", "--config", study, "--set", "n_categories=2000", "--output", output)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("2000 categories among") == 1
    assert (output / "categories.csv").read_bytes() == large_library.read_bytes()
    made, expected = (json.loads((file / "categories.json").read_text()) for file in (output, large_library.parent))
    assert made["verdicts"] == expected["verdicts"]
    # Each of four ranks must have more than one batch for this to test anything.
    assert made["candidates"] > 4 * search._BATCH_CANDIDATES[1]
    assert sorted(file.name for file in output.iterdir()) == ["categories.csv", "categories.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["library", "study.yaml"]


def test_the_table_holds_no_time_or_place(tmp_path: Path) -> None:
    """Two searches give the same bytes: the table is a pure function of the settings."""
    tables = [write_library(find_categories(small_config()), tmp_path / name).read_bytes() for name in "ab"]
    assert tables[0] == tables[1]


@pytest.mark.multirank
def test_a_search_in_vain_is_told_once(study: Path, tmp_path: Path) -> None:
    """All ranks come to the same end; of a thousand, each would tell it."""
    output = tmp_path / "library"
    process = scaffold_on(2, "search", "--config", study, "--set", "variance_threshold=0.9", "--output", output)
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("lower variance_threshold or n_categories") == 1
    assert not output.exists()
