"""A study: several runs over rank counts and seeds, read from one YAML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaffold.config import llnl
from scaffold.config.checks import cross_check
from scaffold.config.keys import iter_keys
from scaffold.config.problems import ConfigError, Problem, from_validation, nearest, with_lines
from scaffold.config.run import RunConfig
from scaffold.config.yamlfile import key_lines, load_yaml, parse_yaml

_RUN_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LAUNCH_KEYS = ("ranks", "seeds", "resources")
_PositiveInt = Annotated[int, Field(ge=1)]


class Resources(BaseModel):
    """What a training of a run asks of the scheduler. Changes no result, triggers no rerun.

    Said for one rank, so that the trainings of a scaling study share it.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    runtime: _PositiveInt = Field(120, description="time limit of one attempt, minutes")
    mem_mb: _PositiveInt = Field(4000, description="memory of each rank, MB")
    threads: int = Field(1, ge=1, le=4096, description="CPU threads of each rank")
    gpus: int = Field(0, ge=0, le=1, description="GPUs of each rank")
    ranks_per_node: _PositiveInt | None = Field(
        None, description="the most ranks on a node, over which they are spread evenly; null: all on one"
    )

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes that ``ranks`` are spread over, evenly."""
        return -(-ranks // (self.ranks_per_node or ranks))


class RunSpec(BaseModel):
    """One entry of ``runs:``, resolved: its keys, and the ranks and seeds that it is run with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    config: RunConfig
    ranks: list[_PositiveInt] = Field(
        default_factory=lambda: [1],
        min_length=1,
        description="rank counts that the run is trained with, one training each",
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(
        min_length=1, description="training seeds (weights, sample order); the data keep `seed`"
    )
    resources: Resources = Field(default_factory=Resources)


@dataclass(frozen=True)
class Job:
    """One training: a run at one rank count with one training seed."""

    run: str
    config: RunConfig
    ranks: int
    seed: int
    resources: Resources

    @property
    def nodes(self) -> int:
        """Number of nodes that the ranks are spread over."""
        return self.resources.nodes(self.ranks)

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each node."""
        return self.ranks // self.nodes

    def resolved(self) -> dict[str, Any]:
        """Return a study of this training alone, with every key written out; itself a valid study file."""
        spec = RunSpec(config=self.config, ranks=[self.ranks], seeds=[self.seed], resources=self.resources)
        return {"runs": {self.run: _flatten(spec)}}


@dataclass(frozen=True)
class Study:
    """All runs of a study file, in its order.

    Attributes:
        source: the file, as error messages name it.
        runs: name -> resolved run.
    """

    source: str
    runs: dict[str, RunSpec]

    @classmethod
    def load(cls, path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Study:
        """Read and validate a study file.

        Args:
            path: the YAML file.
            overrides: ``key=value`` texts of ``--set``; each beats the file in every run.

        Raises:
            ConfigError: with every problem of the file and of the overrides.
            UserError: the file is missing or unreadable.
        """
        text, content = load_yaml(Path(path))
        return cls._build(content, str(path), overrides, key_lines(text))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], source: str, overrides: Iterable[str] = ()) -> Study:
        """Validate a study that is already parsed, as Snakemake's ``config`` is."""
        return cls._build(content, source, overrides, {})

    @classmethod
    def _build(cls, content: Any, source: str, overrides: Iterable[str], lines: dict[str, int]) -> Study:
        problems = _check_shape(content)
        if problems:
            raise ConfigError(source, with_lines(problems, lines))
        problems = _check_names(content)
        forced, found = parse_overrides(overrides)
        problems += found
        runs: dict[str, RunSpec] = {}
        defaults = content.get("defaults") or {}
        # Each problem of the defaults would otherwise be told once for every run.
        default_problems = _check_defaults(defaults)
        problems += default_problems
        for name, entry in content["runs"].items():
            if not isinstance(entry, Mapping | None):
                continue
            spec, found = _resolve(str(name), entry or {}, None if default_problems else defaults, forced)
            problems += found
            if spec is not None:
                runs[name] = spec
        if problems:
            raise ConfigError(source, with_lines(dict.fromkeys(problems), lines))
        return cls(source, runs)

    def run(self, name: str | None) -> RunSpec:
        """Return the run called ``name``, or the only run if ``name`` is None.

        Raises:
            ConfigError: there is no such run, or no name was given and there are several.
        """
        if name is None and len(self.runs) == 1:
            return next(iter(self.runs.values()))
        if name is None:
            raise ConfigError(self.source, [Problem("runs", None, f"choose one with --run: {', '.join(self.runs)}")])
        if name not in self.runs:
            known = ", ".join(self.runs)
            raise ConfigError(
                self.source,
                [Problem(f"runs.{name}", None, f"no such run; there are: {known}{nearest(name, self.runs)}")],
            )
        return self.runs[name]

    def jobs(self) -> list[Job]:
        """Return every training of the study, in the file's order."""
        return [
            Job(name, spec.config, ranks, seed, spec.resources)
            for name, spec in self.runs.items()
            for ranks in spec.ranks
            for seed in spec.seeds
        ]

    def to_mapping(self) -> dict[str, Any]:
        """Return the fully resolved study; it is a valid study file itself."""
        return {"runs": {name: _flatten(spec) for name, spec in self.runs.items()}}


def merge(base: Any, over: Any) -> Any:
    """Return ``over`` laid over ``base``: key by key where both are mappings, at any depth, else ``over`` alone."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}


def parse_overrides(overrides: Iterable[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Parse ``key=value`` texts; values are YAML, so ``--set seed=7`` is an integer."""
    forced: dict[str, Any] = {}
    problems = []
    known = [dotted for dotted, _, _ in iter_keys(RunConfig)]
    for text in overrides:
        dotted, equals, value = text.partition("=")
        if not equals:
            problems.append(Problem(f"--set {text}", None, "must read key=value"))
        elif dotted not in known:
            problems.append(Problem(f"--set {dotted}", None, f"unknown key{nearest(dotted, known)}"))
        else:
            try:
                single = _assign({}, dotted, parse_yaml(value))
            except yaml.YAMLError:
                problems.append(Problem(f"--set {dotted}", repr(value), "is not a YAML value"))
                continue
            wrong = _validate(single, "")[1]
            problems += [replace(problem, key=f"--set {problem.key}") for problem in wrong]
            if not wrong:
                forced = merge(forced, single)
    return forced, problems


def _check_shape(content: Any) -> list[Problem]:
    if llnl.looks_like_llnl(content):
        return [
            Problem("(file)", None, "this is an LLNL ScaFFold config; convert it with: scaffold import-config FILE")
        ]
    if not isinstance(content, Mapping):
        return [Problem("(file)", None, "must be a mapping with the keys defaults and runs")]
    problems = []
    for name in ("defaults", "runs"):
        if content.get(name) is not None and not isinstance(content[name], Mapping):
            problems.append(Problem(name, repr(content[name]), "must be a mapping"))
    if not problems and not content.get("runs"):
        problems = [*_check_top(content), Problem("runs", None, "is missing: a study needs at least one run")]
    return problems


def _check_top(content: Mapping[str, Any]) -> list[Problem]:
    known = ("defaults", "runs")
    hint = "unknown key at the top of a study file; allowed are defaults and runs"
    return [Problem(str(name), None, hint + nearest(str(name), known)) for name in content if name not in known]


def _check_names(content: Mapping[str, Any]) -> list[Problem]:
    problems = _check_top(content)
    for name, entry in content["runs"].items():
        if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
            problems.append(
                Problem(
                    f"runs.{name}", None, "a run's name is a lower-case letter and up to 63 more letters, digits and _"
                )
            )
        elif not isinstance(entry, Mapping | None):
            problems.append(Problem(f"runs.{name}", repr(entry), "must be a mapping"))
    return problems


def _check_defaults(defaults: Mapping[str, Any]) -> list[Problem]:
    misplaced = [name for name in _LAUNCH_KEYS if name in defaults]
    problems = [Problem(f"defaults.{name}", None, f"belongs under a run, as runs.NAME.{name}") for name in misplaced]
    return problems + _validate({k: v for k, v in defaults.items() if k not in misplaced}, "defaults")[1]


def _resolve(
    name: str, entry: Mapping[str, Any], defaults: Mapping[str, Any] | None, forced: Mapping[str, Any]
) -> tuple[RunSpec | None, list[Problem]]:
    """Resolve one run, and find what is wrong with it; ``defaults`` is None if they are wrong themselves."""
    prefix = f"runs.{name}"
    launch = {key: entry[key] for key in _LAUNCH_KEYS if key in entry}
    keys = merge(merge(defaults or {}, {k: v for k, v in entry.items() if k not in launch}), forced)
    config, problems = _validate(keys, prefix, _LAUNCH_KEYS)
    # A config that is wrong is no reason to be silent about the launch keys.
    stand_in = config or RunConfig()
    launch.setdefault("seeds", [stand_in.seed])
    try:
        spec = RunSpec(config=stand_in, **launch)
    except ValidationError as error:
        known = [*_LAUNCH_KEYS, *(f"resources.{name}" for name in Resources.model_fields)]
        return None, problems + from_validation(error, prefix, known)
    for field in ("ranks", "seeds"):
        values = getattr(spec, field)
        if len(set(values)) < len(values):
            problems.append(Problem(f"{prefix}.{field}", str(values), "must not repeat a value"))
    problems += [
        Problem(
            f"{prefix}.resources.ranks_per_node",
            str(spec.resources.ranks_per_node),
            f"{ranks} ranks cannot be spread evenly over {spec.resources.nodes(ranks)} nodes",
        )
        for ranks in spec.ranks
        if ranks % spec.resources.nodes(ranks)
    ]
    if config is None:
        return None, problems
    # Across keys nothing can be said while the values of the defaults are not known.
    for ranks in spec.ranks if defaults is not None else ():
        found = cross_check(config, ranks)
        problems += [Problem(f"{prefix}.{p.key}", p.value, p.allowed) for p in found]
    return spec, list(dict.fromkeys(problems))


def _validate(
    keys: Mapping[str, Any], prefix: str, also_known: Iterable[str] = ()
) -> tuple[RunConfig | None, list[Problem]]:
    try:
        return RunConfig.model_validate(dict(keys)), []
    except ValidationError as error:
        known = [*(dotted for dotted, _, _ in iter_keys(RunConfig)), *also_known]
        return None, from_validation(error, prefix, known)


def _assign(mapping: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    *parents, last = dotted.split(".")
    inner = mapping
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return mapping


def _flatten(spec: RunSpec) -> dict[str, Any]:
    return {
        "ranks": list(spec.ranks),
        "seeds": list(spec.seeds),
        "resources": spec.resources.model_dump(),
        **spec.config.model_dump(),
    }
