"""The memory of rendering, which decides how deep the slabs of a sample are.

Apart from :mod:`scaffold.dataset.render`, since the workflow asks for it while it plans: compiled
functions and what they import would take longer than the plan of a small study.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scaffold.config import RunConfig
from scaffold.dataset.layout import Layout
from scaffold.errors import UserError

MEMORY = 4 * 2**30
"""Bytes that clouds, masks and buffers of one worker may take."""

_PIECE_VOXELS = 2**18
_BYTES_PER_POINT = 12
_SPARE_BYTES = 2**20
_PROCESS_BYTES = 500 * 2**20
"""The interpreter with its libraries and the plan; 154 MB were measured at the smallest scale."""


def deepest_slab(config: RunConfig, memory: int = MEMORY) -> int:
    """Return how many planes of a sample a worker renders at once within ``memory`` bytes.

    Raises:
        UserError: not even one.
    """
    fixed, plane = _fixed_bytes(config), _plane_bytes(config)
    planes = (memory - fixed) // plane
    if planes < 1:
        raise UserError(
            f"rendering at problem_scale {config.problem_scale} takes more than"
            f" {fixed + plane} bytes of memory; {memory} were allowed"
        )
    return min(planes, config.vol_size)


def memory_of_ranks(config: RunConfig, ranks: int) -> int:
    """Return how many bytes ``ranks`` ranks take that render a part together."""
    return ranks * (_PROCESS_BYTES + _fixed_bytes(config) + deepest_slab(config) * _plane_bytes(config))


def piece_planes(edge: int) -> int:
    """Return how many planes of a mask of extent ``edge`` are coloured at once."""
    return min(max(_PIECE_VOXELS // edge**2, 1), edge)


def _fixed_bytes(config: RunConfig) -> int:
    """Return what a worker holds whatever the depth of its slab: a cloud, a piece of the image, odds and ends."""
    return config.point_num * _BYTES_PER_POINT + piece_planes(config.vol_size) * config.vol_size**2 * 4 + _SPARE_BYTES


def _plane_bytes(config: RunConfig) -> int:
    return config.vol_size**2 * np.dtype(Layout.of(config).masks(Path(), 0).dtype).itemsize
