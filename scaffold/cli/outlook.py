"""What a study would make: trainings, model sizes, and bytes on disk, before anything is made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from scaffold.config import Study, dataset_name, library_name
from scaffold.model.size import parameters, training_bytes
from scaffold.wording import count


def outlook(study: Study, directory: Path) -> Iterator[str]:
    """Yield the lines that tell what ``study`` would make in ``directory``, and whether it would fit."""
    jobs = study.jobs()
    yield f"{study.source}: {count(len(jobs), 'training')} in {count(len(study.runs), 'run')}"
    libraries: dict[str, int] = {}
    datasets: dict[str, int] = {}
    for name, spec in study.runs.items():
        config = spec.config
        libraries[library_name(config)] = config.instances_bytes
        datasets[dataset_name(config)] = config.dataset_bytes
        yield f"  {name}: ranks {_list(spec.ranks)}; seeds {_list(spec.seeds)}"
        yield (
            f"    data     {config.n_training} + {config.n_validation} volumes of {config.vol_size}^3,"
            f" {count(config.n_categories, 'category', 'categories')}; results/datasets/{dataset_name(config)}"
        )
        yield (
            f"    model    U-Net of {count(config.unet_layers, 'level')}, {config.unet_base_channels} base channels,"
            f" {parameters(config):,} parameters"
        )
    trainings = sum(training_bytes(job.config) for job in jobs)
    parts = {"instances": sum(libraries.values()), "data sets": sum(datasets.values()), "models": trainings}
    need = sum(parts.values())
    free = shutil.disk_usage(directory).free
    yield f"  disk: {size(need)} ({', '.join(f'{what} {size(amount)}' for what, amount in parts.items())})"
    yield f"  {'free here: ' if free > need else 'NOT ENOUGH SPACE here: free are '}{size(free)}"


def size(number: int) -> str:
    """Return a number of bytes in the largest decimal unit that leaves at least 1."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))
