"""Two figures of merit side by side, or why they cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scaffold.errors import UserError
from scaffold.reporting import kernels
from scaffold.reporting.fom import FigureOfMerit, Spread, differing, read_fom
from scaffold.wording import count

_ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One thing that is not equal in the two: its name, and what each says."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Ratio:
    """How a quantity of B compares with that of A.

    Attributes:
        name: the quantity, with its unit.
        a: its spread over A's seeds.
        b: its spread over B's seeds.
        ratio: of the medians; oriented so that more than 1 means that B is better.
        least: the ratio that the worst seed of B and the best of A would give.
        greatest: the ratio that the best seed of B and the worst of A would give.
    """

    name: str
    a: Spread
    b: Spread
    ratio: float
    least: float
    greatest: float

    @property
    def separated(self) -> bool:
        """Whether every seed of one side beats every seed of the other."""
        return self.least > 1 or self.greatest < 1


@dataclass(frozen=True)
class Comparison:
    """What is to say about two figures of merit.

    Attributes:
        differences: the ``must_match`` keys, and the data, that differ: comparable only if empty.
        free: what a site may choose and that differs.
        ratios: the time to target first, if both have one.
        missing: which side has no figure of merit, and why.
        notes: what a reader of the ratios should know.
    """

    differences: list[Difference]
    free: list[Difference]
    ratios: list[Ratio]
    missing: list[str]
    notes: list[str]

    @property
    def comparable(self) -> bool:
        """Whether the ratio of the two figures of merit means anything."""
        return not self.differences and not self.missing

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON types."""
        ratios = [
            {
                "name": r.name,
                "a": r.a.model_dump(),
                "b": r.b.model_dump(),
                "ratio": r.ratio,
                "least": r.least,
                "greatest": r.greatest,
            }
            for r in self.ratios
        ]
        return {
            "comparable": self.comparable,
            "differences": [asdict(item) for item in self.differences],
            "missing": self.missing,
            "notes": self.notes,
            "free": [asdict(item) for item in self.free],
            "ratios": ratios,
        }


def compare_files(a: Path, b: Path) -> Comparison:
    """Compare two ``fom.json``.

    Raises:
        UserError: one does not exist.
        DamagedFileError: one is damaged.
    """
    return compare(read_fom(a), read_fom(b))


def compare(a: FigureOfMerit, b: FigureOfMerit) -> Comparison:
    """Compare ``b`` with ``a``."""
    differences = _differences(a.must_match, b.must_match)
    # Equal settings give equal bytes; where they do not, one side's data are of another code version.
    if not differences and a.dataset.digest != b.dataset.digest:
        differences.append(Difference("digest of the data set", a.dataset.digest, b.dataset.digest))
    missing = [
        f"{side} ({figure.run} on {count(figure.ranks, 'rank')}) has no figure of merit: {figure.missing}"
        for side, figure in (("A", a), ("B", b))
        if figure.missing
    ]
    free = _differences(_conditions(a), _conditions(b))
    return Comparison(differences, free, _ratios(a, b), missing, _notes(a, b))


def show(comparison: Comparison, a: Path, b: Path, console: Console, force: bool = False) -> None:
    """Print the comparison: tables on a terminal, plain aligned columns in a pipe.

    The ratios of a pair that is not comparable are shown only with ``force``.
    """
    console.print(f"A  {a}", f"B  {b}", sep="\n", highlight=False, soft_wrap=True)
    if comparison.differences:
        console.print("\nNot comparable: these keys must match.", style="bold red")
        console.print(_difference_table(comparison.differences))
    for text in comparison.missing:
        console.print(f"\n{text}", highlight=False, soft_wrap=True)
    if comparison.comparable or force:
        console.print()
        console.print(_ratio_table(comparison.ratios))
        console.print(
            "\nGain > 1: B is better. The range is what any seed of B against any seed of A would give.",
            highlight=False,
            soft_wrap=True,
        )
    if comparison.comparable:
        console.print(f"\n{verdict(comparison)}", style="bold", highlight=False, soft_wrap=True)
    for note in comparison.notes:
        console.print(f"\nNote: {note}", highlight=False, soft_wrap=True)
    if comparison.free:
        console.print("\nThe sites' own choices that differ:")
        console.print(_difference_table(comparison.free))


def verdict(comparison: Comparison) -> str:
    """Return the outcome of a comparable pair in one sentence."""
    time = comparison.ratios[0]
    faster, ratio = ("B", time.ratio) if time.ratio >= 1 else ("A", 1 / time.ratio)
    text = f"{faster} reaches the target {ratio:.3g} times as fast"
    if max(time.a.max - time.a.min, time.b.max - time.b.min) == 0:
        return f"{text} (no spread is known: each side has one seed)"
    if not time.separated:
        return f"{text}, but the seeds' ranges overlap: more seeds are needed to tell them apart"
    return f"{text}; every seed of {faster} beats every seed of the other"


def refusal(comparison: Comparison) -> UserError:
    """Return the error of a pair that is not comparable, for a caller that was not told to force it."""
    names = [item.name for item in comparison.differences]
    reason = f"they differ in {', '.join(names)}" if names else "; ".join(comparison.missing)
    return UserError(f"the two are not comparable: {reason}; --force shows the ratios all the same")


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    return [Difference(name, a.get(name, _ABSENT), b.get(name, _ABSENT)) for name in differing(a, b)]


def _conditions(figure: FigureOfMerit) -> dict[str, Any]:
    return {
        **figure.free,
        "ranks": figure.ranks,
        "global batch": figure.global_batch,
        **{f"machine.{name}": value for name, value in figure.world.model_dump().items() if name != "ranks"},
        **{f"version.{name}": value for name, value in figure.versions.items()},
        "commit": ", ".join(figure.commits),
        "number of seeds": len(figure.seeds),
    }


def _notes(a: FigureOfMerit, b: FigureOfMerit) -> list[str]:
    served = [kernels.in_words(figure.kernels) for figure in (a, b)]
    if served[0] == served[1]:
        return []
    return [f"the records of the kernels that ran differ. A: {served[0]}. B: {served[1]}."]


def _ratios(a: FigureOfMerit, b: FigureOfMerit) -> list[Ratio]:
    quantities: list[tuple[str, Callable[[FigureOfMerit], Spread | None], bool]] = [
        ("time to target (s)", lambda f: f.time_to_target_s, True),
        ("LLNL's figure of merit (1/s)", lambda f: f.llnl_fom, False),
        ("epochs", lambda f: f.epochs, True),
        ("time per epoch (s)", lambda f: f.epoch_s, True),
        ("training samples per second", lambda f: f.samples_per_s, False),
        ("step time (s)", lambda f: f.minibatch_time_s, True),
    ]
    ratios = []
    for name, of, less_is_better in quantities:
        left, right = of(a), of(b)
        if left is not None and right is not None:
            ratios.append(_ratio(name, left, right, less_is_better))
    return ratios


def _ratio(name: str, a: Spread, b: Spread, less_is_better: bool) -> Ratio:
    if less_is_better:
        return Ratio(name, a, b, a.median / b.median, a.min / b.max, a.max / b.min)
    return Ratio(name, a, b, b.median / a.median, b.min / a.max, b.max / a.min)


def _difference_table(differences: list[Difference]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("A", overflow="fold")
    table.add_column("B", overflow="fold")
    for item in differences:
        table.add_row(item.name, str(item.a), str(item.b))
    return table


def _ratio_table(ratios: list[Ratio]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "A (least to greatest)", "B (least to greatest)", "gain of B", "range"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for item in ratios:
        table.add_row(
            item.name, _spread(item.a), _spread(item.b),
            f"{item.ratio:.3f}", f"{item.least:.3f} to {item.greatest:.3f}",
        )  # fmt: skip
    return table


def _spread(spread: Spread) -> str:
    if spread.min == spread.max:
        return f"{spread.median:.4g}"
    return f"{spread.median:.4g} ({spread.min:.4g} to {spread.max:.4g})"
