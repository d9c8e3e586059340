"""The figure of merit of one run at one rank count: the seeds' results joined into ``fom.json``.

Time to target is the sum over epochs of the epoch's wall time plus the time that checkpoints held
the loop up; LLNL's figure of merit is the reciprocal of the first sum alone, as its code computes
it. Both exist only for a run that trains until its target (``epochs: -1``) and whose every seed
reached it: leaving out the seeds that did not would flatter the rest.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from scaffold import atomic, provenance
from scaffold.config import iter_keys
from scaffold.config.identity import digest
from scaffold.config.keys import value_of
from scaffold.config.run import RunConfig
from scaffold.errors import UserError
from scaffold.records import DatasetStamp, Kernels, Result, World
from scaffold.reporting import kernels
from scaffold.reporting.results import Training, read_record, read_training
from scaffold.wording import count

FORMAT_VERSION = 1
_PUBLISHED_SEEDS = 3
"""LLNL asks for the median of at least this many seeds."""


class Spread(BaseModel):
    """Median, least and greatest over the seeds."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of ``values``, of which there is at least one."""
        return cls(median=statistics.median(values), min=min(values), max=max(values))


class SeedFigures(BaseModel):
    """What one seed measured; times in seconds.

    Attributes:
        samples_per_s: training samples per second of the training part of the epochs.
        ended: why each attempt ended, in order.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    seed: int
    converged: bool
    epochs: int
    total_optimizer_steps: int
    val_dice: float
    time_to_target_s: float | None
    llnl_fom: float | None
    epoch_time_s: float
    checkpoint_stall_s: float
    samples_per_s: float
    steps_per_s: float
    minibatch_time_s: float | None
    warmup_s: float | None
    lost_s: float
    attempts: int
    ended: list[str]
    commit: str


class FigureOfMerit(BaseModel):
    """The content of ``fom.json``: the figure, and every condition that it was measured under.

    Attributes:
        time_to_target_s: seconds, over the seeds; None if there is no figure of merit.
        llnl_fom: 1 / s, over the seeds; None likewise.
        missing: why there is no figure of merit; None if there is one.
        warnings: what a reader of the figure should know.
        must_match: the keys, with values, that must be equal for two figures to be compared.
        free: the other keys.
        world: what the first seed ran on; a seed that ran elsewhere is a warning.
        kernels: calls of all seeds, and ranks that differed in any; None where no result has them.
        provenance: of this file; ``commits`` lists those of the trainings.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    run: str
    ranks: int
    time_to_target_s: Spread | None
    llnl_fom: Spread | None
    missing: str | None
    warnings: list[str]
    epochs: Spread
    epoch_s: Spread
    steps_per_s: Spread
    samples_per_s: Spread
    minibatch_time_s: Spread | None
    seeds: Annotated[list[SeedFigures], Field(min_length=1)]
    global_batch: int
    parameters: int
    must_match: dict[str, Any]
    must_match_hash: str
    free: dict[str, Any]
    dataset: DatasetStamp
    world: World
    kernels: Kernels | None = None
    commits: list[str]
    versions: dict[str, str]
    provenance: dict[str, Any]


def read_fom(path: Path) -> FigureOfMerit:
    """Read a ``fom.json``.

    Raises:
        UserError: there is no such file, or it is whole but of another kind.
        DamagedFileError: it is truncated or lacks a field.
    """
    place = "a run's figure of merit is results/runs/RUN/ranksN/fom.json"
    if not path.exists():
        raise UserError(f"{path} does not exist; {place}")
    if path.is_dir() or _is_another_kind(path):
        raise UserError(f"{path} is not a figure of merit; {place}")
    return read_record(path, FigureOfMerit)


def _is_another_kind(path: Path) -> bool:
    """Return whether a file is sound JSON of something else: to make it anew would help nobody."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return not (isinstance(content, dict) and "must_match_hash" in content)


def write_fom(directories: Iterable[Path], output: Path) -> FigureOfMerit:
    """Join the trainings in ``directories`` (one per seed) and write ``output``.

    Raises:
        UserError: they are not seeds of one run.
        DamagedFileError: a result is missing or damaged.
    """
    figure = figure_of_merit([read_training(directory) for directory in directories])
    atomic.write_json(output, figure.model_dump(mode="json"))
    return figure


def figure_of_merit(trainings: Sequence[Training]) -> FigureOfMerit:
    """Join the seeds of one run.

    Raises:
        UserError: they differ in run, ranks, settings or data, or a seed comes twice.
    """
    _refuse_mixture(trainings)
    trainings = sorted(trainings, key=lambda training: training.result.seed)
    results = [training.result for training in trainings]
    first = results[0]
    seeds = [_seed_figures(training) for training in trainings]
    missing = _why_missing(results)
    steps = [seed.minibatch_time_s for seed in seeds if seed.minibatch_time_s is not None]
    return FigureOfMerit(
        format_version=FORMAT_VERSION,
        run=first.run,
        ranks=first.ranks,
        time_to_target_s=None if missing else Spread.of([s.time_to_target_s for s in seeds if s.time_to_target_s]),
        llnl_fom=None if missing else Spread.of([s.llnl_fom for s in seeds if s.llnl_fom]),
        missing=missing,
        warnings=_warnings(results),
        epochs=Spread.of([seed.epochs for seed in seeds]),
        epoch_s=Spread.of([seed.epoch_time_s / seed.epochs for seed in seeds]),
        steps_per_s=Spread.of([seed.steps_per_s for seed in seeds]),
        samples_per_s=Spread.of([seed.samples_per_s for seed in seeds]),
        minibatch_time_s=Spread.of(steps) if len(steps) == len(seeds) else None,
        seeds=seeds,
        global_batch=first.global_batch,
        parameters=first.parameters,
        must_match=first.must_match,
        must_match_hash=digest(first.must_match),
        free=_free_keys(first.settings),
        dataset=first.dataset,
        world=first.world,
        kernels=kernels.joined(result.kernels for result in results),
        commits=sorted({result.commit for result in results}),
        versions=first.provenance.get("versions", {}),
        provenance=provenance.stamp(),
    )


def headline(figure: FigureOfMerit) -> str:
    """Return the figure of merit in one sentence."""
    where = f"{figure.run} on {count(figure.ranks, 'rank')} ({figure.world.device})"
    if figure.time_to_target_s is None or figure.llnl_fom is None:
        return f"{where}: no figure of merit, because {figure.missing}"
    time = figure.time_to_target_s
    seeds = count(len(figure.seeds), "seed")
    if len(figure.seeds) > 1:
        seeds = f"median of {seeds}, {time.min:.4g} to {time.max:.4g} s"
    return (
        f"{where}: validation Dice {figure.must_match['target_dice']:g} in {time.median:.4g} s ({seeds});"
        f" LLNL's figure of merit {figure.llnl_fom.median:.4g} / s"
    )


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the keys that are not equal in ``a`` and ``b``, or only in one of them, in order."""
    return [name for name in {**a, **b} if name not in a or name not in b or a[name] != b[name]]


def _refuse_mixture(trainings: Sequence[Training]) -> None:
    if not trainings:
        raise UserError("no result was named: a figure of merit needs at least one seed")
    reference, *others = trainings
    first = reference.result
    for training in others:
        result = training.result
        both = f"{reference.directory} and {training.directory} are not seeds of one run"
        if (result.run, result.ranks) != (first.run, first.ranks):
            raise UserError(
                f"{both}: they are of {first.run}/ranks{first.ranks} and {result.run}/ranks{result.ranks};"
                " name the seed folders of one results/runs/RUN/ranksN"
            )
        names = differing(first.must_match, result.must_match)
        if not names and result.training_identity != first.training_identity:
            names = [
                dotted
                for dotted, _, info in iter_keys(RunConfig)
                if info.stage != "launch" and value_of(first.settings, dotted) != value_of(result.settings, dotted)
            ] or ["code version"]
        if names:
            raise UserError(
                f"{both}: they differ in {', '.join(names)}; run Snakemake again, it redoes what is out of date"
            )
        if result.dataset.digest != first.dataset.digest:
            raise UserError(
                f"{both}: their data differ ({first.dataset.digest} and {result.dataset.digest});"
                " run Snakemake again, it redoes what is out of date"
            )
    seeds = [training.result.seed for training in trainings]
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        raise UserError(
            f"seed {repeated[0]} is named twice: {', '.join(str(training.directory) for training in trainings)}"
        )


def _why_missing(results: Sequence[Result]) -> str | None:
    target = results[0].settings.target_dice
    limit = results[0].settings.epochs
    if limit != -1:
        return f"epochs is {limit}: only a run that trains until target_dice (epochs: -1) has one"
    short = [result for result in results if not result.converged]
    if short:
        told = ", ".join(f"seed {r.seed} stopped at {r.val_dice:.4g} after {r.epochs} epochs" for r in short)
        return f"target_dice {target:g} was not reached ({told})"
    return None


def _warnings(results: Sequence[Result]) -> list[str]:
    warnings = []
    if len(results) < _PUBLISHED_SEEDS:
        warnings.append(f"{count(len(results), 'seed')}; LLNL asks for the median of at least {_PUBLISHED_SEEDS}")
    commits = sorted({result.commit for result in results})
    if len(commits) > 1:
        warnings.append(f"the seeds were trained by different commits: {', '.join(commits)}")
    if any(commit.endswith("-dirty") for commit in commits):
        warnings.append("the source tree had uncommitted changes")
    for name in World.model_fields:
        values = {str(getattr(result.world, name)) for result in results}
        if len(values) > 1:
            warnings.append(f"the seeds ran with different {name}: {', '.join(sorted(values))}")
    if any(result.provenance.get("versions") != results[0].provenance.get("versions") for result in results):
        warnings.append("the seeds were trained with different library versions")
    return warnings


def _seed_figures(training: Training) -> SeedFigures:
    result = training.result
    training_s = float(training.stats.train_duration.sum())
    complete = result.converged and result.settings.epochs == -1
    return SeedFigures(
        seed=result.seed,
        converged=result.converged,
        epochs=result.epochs,
        total_optimizer_steps=result.total_optimizer_steps,
        val_dice=result.val_dice,
        time_to_target_s=result.time_to_target_s if complete else None,
        llnl_fom=1 / result.epoch_time_s if complete else None,
        epoch_time_s=result.epoch_time_s,
        checkpoint_stall_s=result.checkpoint_stall_s,
        samples_per_s=result.settings.n_training * result.epochs / training_s,
        steps_per_s=result.total_optimizer_steps / training_s,
        minibatch_time_s=result.minibatch_time_s,
        warmup_s=result.warmup_s,
        lost_s=result.lost_s,
        attempts=len(result.attempts),
        ended=[attempt.reason or "published" for attempt in result.attempts],
        commit=result.commit,
    )


def _free_keys(settings: RunConfig) -> dict[str, Any]:
    return {dotted: value_of(settings, dotted) for dotted, _, info in iter_keys(RunConfig) if not info.must_match}
