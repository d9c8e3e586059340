"""What the Snakefile needs of a study: reading it, writing it resolved, and closing finished trainings."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaffold import atomic
from scaffold.config import Job, Study, training_identity
from scaffold.config.study import merge
from scaffold.config.yamlfile import load_yaml, parse_yaml
from scaffold.errors import UserError


def activate_environment() -> None:
    """Let jobs find the ``python`` and ``mpiexec`` of this interpreter's environment, activated or not."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def read_study(
    default: str,
    command_line_files: Sequence[str | os.PathLike[str]],
    command_line_keys: Mapping[str, Any],
    replaced: bool,
) -> Study:
    """Return the study that a Snakemake command names.

    Args:
        default: the workflow's own ``configfile:``.
        command_line_files: those of ``--configfile``; several are merged, later ones winning.
        command_line_keys: the mapping of ``--config``, which wins over all files. Snakemake gives the
            types of the outermost values alone and leaves all others as text.
        replaced: whether ``--replace-workflow-config`` was given.

    Raises:
        UserError: Snakemake would merge the default study into the one that was asked for.
        ConfigError: the study is wrong.
    """
    if command_line_files and not replaced:
        raise UserError(
            f"--configfile {_shown(command_line_files[0])} would be merged with {default}, where it must replace it:"
            " use a profile (--profile profiles/local) or add --replace-workflow-config"
        )
    files = [_shown(file) for file in command_line_files] or [default]
    if len(files) == 1 and not command_line_keys:
        # Read from the file itself, so that errors have line numbers and duplicate keys are seen.
        return Study.load(files[0])
    content: dict[str, Any] = {}
    for file in files:
        content = merge(content, load_yaml(Path(file))[1])
    content = merge(content, _typed(command_line_keys))
    return Study.from_mapping(content, " + ".join([*files, *(["--config"] if command_line_keys else [])]))


def resolved_path(results: Path) -> Path:
    """Return where the resolved study of a results folder is."""
    return results / "study.yaml"


def write_resolved(study: Study, results: Path) -> None:
    """Write the resolved study, which all jobs read: a user's file may move or change meanwhile."""
    atomic.write_yaml(resolved_path(results), study.to_mapping())


def training_folder(results: Path, job: Job) -> Path:
    """Return the folder of one training."""
    return results / "runs" / job.run / f"ranks{job.ranks}" / f"seed{job.seed}"


def is_trained(results: Path, job: Job) -> bool:
    """Return whether ``job`` has published a result, with the settings and code versions of today."""
    try:
        result = json.loads((training_folder(results, job) / "result.json").read_bytes())
        return bool(result["training_identity"] == training_identity(job.config))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def seal_finished(study: Study, results: Path) -> None:
    """Note of every published training that Snakemake has recorded its success.

    A forced rerun of it then trains afresh, where otherwise it would publish again from its
    checkpoint. Never fails: it runs when the outcome of the run is settled.
    """
    from scaffold.training.workdir import seal

    for job in study.jobs():
        folder = training_folder(results, job)
        try:
            seal(folder)
        except Exception as error:
            logging.getLogger("scaffold").warning("cannot seal %s: %s", folder, error)


def source_digest(*sources: Path) -> str:
    """Return a digest of Python source files, and of all those below folders."""
    hashed = hashlib.sha256()
    for source in sources:
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            content = path.read_bytes()
            hashed.update(f"{path.relative_to(source.parent).as_posix()} {len(content)}\n".encode() + content)
    return hashed.hexdigest()[:12]


def _shown(path: str | os.PathLike[str]) -> str:
    """Return ``path`` relative to the working directory where it lies below it."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def _typed(value: Any) -> Any:
    """Return ``value`` with every text in it as the scalar that it is in a YAML file."""
    if isinstance(value, Mapping):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        typed = parse_yaml(value)
    except yaml.YAMLError:
        return value
    return value if isinstance(typed, Mapping | list) else typed
