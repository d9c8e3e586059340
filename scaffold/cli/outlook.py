"""What a study would make: trainings, model sizes, and bytes on disk, before anything is made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from scaffold.config import INSTANCES_PER_CATEGORY, RunConfig, Study, dataset_name, library_name
from scaffold.model.size import parameter_count

_POINT_BYTES = 3 * 4
_STATE_TENSORS = {"ADAM": 3, "SGD": 1, "RMSProp": 2}
"""Tensors of the parameters' size in a checkpoint: the parameters and the optimizer's moments."""


def outlook(study: Study, directory: Path) -> Iterator[str]:
    """Yield the lines that tell what ``study`` would make in ``directory``, and whether it would fit."""
    jobs = study.jobs()
    yield f"{study.source}: {_count(len(jobs), 'training')} in {_count(len(study.runs), 'run')}"
    libraries: dict[str, int] = {}
    datasets: dict[str, int] = {}
    for name, spec in study.runs.items():
        config = spec.config
        libraries[library_name(config)] = library_bytes(config)
        datasets[dataset_name(config)] = dataset_bytes(config)
        yield f"  {name}: ranks {_list(spec.ranks)}; seeds {_list(spec.seeds)}"
        yield (
            f"    data     {config.n_training} + {config.n_validation} volumes of {config.vol_size}^3,"
            f" {_count(config.n_categories, 'category', 'categories')}; results/datasets/{dataset_name(config)}"
        )
        yield (
            f"    model    U-Net of {_count(config.unet_layers, 'level')}, {config.unet_base_channels} base channels,"
            f" {parameters(config):,} parameters"
        )
    trainings = sum(training_bytes(job.config) for job in jobs)
    parts = {"instances": sum(libraries.values()), "data sets": sum(datasets.values()), "models": trainings}
    need = sum(parts.values())
    free = shutil.disk_usage(directory).free
    yield f"  disk: {size(need)} ({', '.join(f'{what} {size(count)}' for what, count in parts.items())})"
    yield f"  {'free here: ' if free > need else 'NOT ENOUGH SPACE here: free are '}{size(free)}"


def parameters(config: RunConfig) -> int:
    """Return the number of parameters of the U-Net."""
    return parameter_count(config.unet_layers, config.unet_base_channels, config.n_categories + 1)


def library_bytes(config: RunConfig) -> int:
    """Return the bytes of the instances of all categories."""
    return config.n_categories * INSTANCES_PER_CATEGORY * config.point_num * _POINT_BYTES


def dataset_bytes(config: RunConfig) -> int:
    """Return the bytes of all samples."""
    return config.n_volumes * config.volume_bytes


def training_bytes(config: RunConfig) -> int:
    """Return the bytes that one training leaves: two checkpoints (last and best) and the model."""
    return 4 * parameters(config) * (2 * _STATE_TENSORS[config.optimizer] + 1)


def size(count: int) -> str:
    """Return a number of bytes in the largest decimal unit that leaves at least 1."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
