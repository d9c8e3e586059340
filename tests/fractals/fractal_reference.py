"""A plain reference of the fractals, as the specification reads; and inputs that several tests share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scaffold import rng
from scaffold.config import RunConfig


def reference_cloud(params: NDArray[np.float64], n: int, key: int) -> NDArray[np.float64]:
    """The chaos game in Python's own floats, which round every single operation."""
    maps = params.tolist()
    point = [0.0, 0.0, 0.0]
    cloud = []
    for u in rng.uniform(key, n).tolist():
        cloud.append(point)
        m = maps[0] if u < maps[0][12] else maps[1]
        point = [
            (m[3 * row] * point[0] + m[3 * row + 1] * point[1]) + (m[3 * row + 2] * point[2] + m[9 + row])
            for row in range(3)
        ]
    return np.array(cloud)


def reference_verdict(cloud: NDArray[np.float64], normalize: float, threshold: float) -> str:
    """The acceptance test on a stored cloud, in two passes."""
    if not np.all(np.isfinite(cloud)) or np.abs(cloud).max() > 1e10:
        return "RUNAWAY"
    extent = cloud.max(0) - cloud.min(0)
    if not np.all(extent > 0):
        return "FLAT"
    normalized = (cloud - cloud.mean(0)) * 2 * normalize / extent
    return "ACCEPTED" if np.all(normalized.var(0) > threshold) else "LOW_VARIANCE"


def reference_system(candidate: int, coefficients: int) -> NDArray[np.float64]:
    """A random system, with NumPy's own determinant."""
    u = rng.uniform(coefficients, 24 * (candidate + 1))[24 * candidate :]
    maps = (2 * u - 1).reshape(2, 12)
    weights = np.abs(np.linalg.det(maps[:, :9].reshape(2, 3, 3)))
    return np.hstack([maps, (weights / weights.sum())[:, None]])


def exact_moments(cloud: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sum of squared deviations of each axis, summed without rounding."""
    mean = np.array([math.fsum(axis) / len(cloud) for axis in cloud.T])
    return mean, np.array([math.fsum((axis - m) ** 2) for axis, m in zip(cloud.T, mean, strict=True)])


def system(*maps: tuple[list[list[float]], list[float], float]) -> NDArray[np.float64]:
    """Params of two maps given as (matrix, translation, probability)."""
    return np.array([[*np.ravel(matrix), *translation, probability] for matrix, translation, probability in maps])


def scaling(
    factor: float, translation: float, probability: float = 0.5
) -> tuple[list[list[float]], list[float], float]:
    """The map x -> factor * x + translation on each axis."""
    return (factor * np.eye(3)).tolist(), [translation] * 3, probability


def small_config(**keys: object) -> RunConfig:
    """A config with clouds of 1024 points."""
    return RunConfig.model_validate({"problem_scale": 6, "unet_bottleneck_dim": 2, "n_categories": 3, **keys})
