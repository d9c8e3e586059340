"""Point clouds of a category's instances, as its file holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaffold.errors import DamagedFileError


def load_instance(path: Path, instance: int) -> NDArray[np.float32]:
    """Return the cloud of ``instance`` from the (145, points, 3) float32 file ``path``, (points, 3).

    Raises:
        DamagedFileError: the file is missing or not such an array.
    """
    remedy = f"snakemake --profile profiles/local --force {path}"
    try:
        clouds: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DamagedFileError(path, f"cannot be read ({error})", remedy) from error
    if clouds.dtype != np.float32 or clouds.ndim != 3 or clouds.shape[2] != 3 or instance >= len(clouds):
        raise DamagedFileError(path, f"has shape {clouds.shape} and type {clouds.dtype}", remedy)
    return np.array(clouds[instance])
