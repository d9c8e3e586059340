"""Publishing a data set: checking all of its parts, then writing the ``meta.yaml`` that makes it valid."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scaffold import atomic
from scaffold.config import RunConfig, config_id
from scaffold.config.identity import dataset_settings
from scaffold.dataset.layout import INDEX, PARTS, Layout, part_directory
from scaffold.dataset.meta import FORMAT, FORMAT_VERSION, Meta, PartIndex, Splits, load_part
from scaffold.dataset.plan import Plan, make_plan
from scaffold.errors import DamagedFileError, UserError
from scaffold.remedy import rebuild_command

_log = logging.getLogger(__name__)


def publish(config: RunConfig, parts: Path, output: Path) -> Meta:
    """Check every part of a data set and write its ``meta.yaml``, atomically.

    Sizes and headers of the array files are checked and all that ``part.json`` says; the bytes of the
    samples are :func:`scaffold.dataset.verify.verify`'s business. The file is a pure function of the
    parts: publishing again gives the same bytes, hence triggers no training.

    Args:
        config: the run whose data set it is.
        parts: folder of the parts.
        output: ``meta.yaml`` to write; must lie beside ``parts``.

    Raises:
        UserError: ``output`` and ``parts`` are not in one folder.
        DamagedFileError: a part is missing, damaged or of other settings; all such are logged.
    """
    if parts.resolve() != output.resolve().parent / PARTS:
        raise UserError(f"--output {output}: must be beside the parts, as {parts.parent / output.name}")
    layout, plan = Layout.of(config), make_plan(config)
    indices: list[PartIndex] = []
    problems: list[DamagedFileError] = []
    for part in range(layout.n_parts):
        try:
            indices.append(_checked(config, layout, plan, parts, part))
        except DamagedFileError as error:
            problems.append(error)
    for problem in problems[1:]:
        _log.error("%s", problem)
    if problems:
        raise problems[0]
    meta = _meta(config, layout, plan, indices)
    atomic.write_text(output, _as_yaml(meta))
    return meta


def _checked(config: RunConfig, layout: Layout, plan: Plan, parts: Path, part: int) -> PartIndex:
    """Return the index of ``part`` if it and the files that it describes are as ``config`` wants them."""
    folder = part_directory(parts, part)
    for file in layout.arrays(folder, part):
        if problem := file.header_problem():
            raise DamagedFileError(file.path, problem, rebuild_command(file.path))
    index = load_part(parts, part)
    path = folder / INDEX
    if problem := _index_problem(index, config, layout, plan, part):
        raise DamagedFileError(path, problem, rebuild_command(path))
    return index


def _index_problem(index: PartIndex, config: RunConfig, layout: Layout, plan: Plan, part: int) -> str | None:
    wanted = dataset_settings(config)
    if index.settings != wanted or index.config_id != config_id(config):
        names = sorted(name for name in wanted | index.settings if wanted.get(name) != index.settings.get(name))
        return f"was made with other settings ({', '.join(names) or 'config_id'})"
    if index.part != part:
        return f"describes part {index.part} instead of part {part}"
    found = [sample.id for sample in index.samples]
    if found != list(layout.samples(part)):
        return f"lists the samples {found} instead of {list(layout.samples(part))}"
    for sample in index.samples:
        if [list(pair) for pair in sample.fractals] != plan.pairs[sample.id].tolist():
            return f"has other fractals in sample {sample.id} than the plan"
        unknown = set(sample.voxels) - {str(label) for label in range(len(plan.palette))}
        if unknown or sum(sample.voxels.values()) != layout.edge**3:
            return f"has impossible voxel counts for sample {sample.id}"
    return None


def _meta(config: RunConfig, layout: Layout, plan: Plan, indices: list[PartIndex]) -> Meta:
    samples = [sample for index in indices for sample in index.samples]
    voxels = [0] * len(plan.palette)
    for sample in samples:
        for label, count in sample.voxels.items():
            voxels[int(label)] += count
    content: dict[str, Any] = {
        "format": FORMAT,
        "dataset_format_version": FORMAT_VERSION,
        "config_id": config_id(config),
        "digest": "",
        "created_at": max(str(index.made_by["created_at"]) for index in indices),
        "code_commit": ", ".join(sorted({str(index.made_by["commit"]) for index in indices})),
        "settings": dataset_settings(config),
        "image": layout.image,
        "edge": layout.edge,
        "n_training": config.n_training,
        "n_validation": config.n_validation,
        "samples_per_part": layout.samples_per_part,
        "voxels": voxels,
        "palette": plan.palette.tolist(),
        "splits": Splits(
            training=np.flatnonzero(~plan.validation).tolist(), validation=np.flatnonzero(plan.validation).tolist()
        ),
        "sample_digests": [sample.digest for sample in samples],
    }
    content["digest"] = Meta.model_construct(**content).content_digest()
    return Meta.model_validate(content)


class _Rows(yaml.SafeDumper):
    """Writes lists of numbers or texts in rows, and everything else one key or item a line."""


def _represent_list(dumper: _Rows, items: list[Any]) -> yaml.SequenceNode:
    flat = not any(isinstance(item, list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


_Rows.add_representer(list, _represent_list)


def _as_yaml(meta: Meta) -> str:
    return str(yaml.dump(meta.model_dump(), Dumper=_Rows, sort_keys=False, width=120))
