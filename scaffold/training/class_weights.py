"""Weights of the classes in the cross-entropy, estimated from a sample of the training masks."""

from __future__ import annotations

import logging
import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scaffold.parallel.team import Team

log = logging.getLogger(__name__)


class Masks(Protocol):
    """The part of :class:`scaffold.dataset.reader.Samples` that is needed: masks without their images."""

    @property
    def n_classes(self) -> int:
        """Number of classes, the background included."""

    def __len__(self) -> int: ...

    def mask(self, index: int) -> Tensor:
        """Return the labels of a sample, or of this rank's block of it."""


def estimate(samples: Masks, fraction: float, team: Team, replica: int = 0, replicas: int = 1) -> Tensor:
    """Return the class weights, the same bits on every rank. Collective.

    Each replica reads its share of the subset; labels are counted as integers and summed over the team,
    so the weights do not depend on the number of ranks or blocks.

    Args:
        samples: the training split.
        fraction: share of the masks to read, in (0, 1].
        team: all ranks of the training.
        replica: which replica this rank belongs to.
        replicas: number of replicas.

    Returns:
        (C,) float32, on the CPU.

    Raises:
        RankError: a mask could not be read, raised on every rank.
    """
    outcome: NDArray[np.int64] | Exception
    try:
        outcome = histogram(samples, subset(len(samples), fraction)[replica::replicas])
    except Exception as error:
        outcome = error
    counts = np.sum(team.agree(outcome, "counting labels"), axis=0)
    return class_weights(counts)


def subset(length: int, fraction: float) -> list[int]:
    """Return the indices of ``ceil(length * fraction)`` samples, evenly spread, first and last included."""
    count = min(max(math.ceil(length * fraction), 1), length)
    return [int(index) for index in np.linspace(0, length - 1, count)] if count < length else list(range(length))


def histogram(samples: Masks, indices: list[int]) -> NDArray[np.int64]:
    """Return how many voxels of the samples ``indices`` bear each label, (C,)."""
    counts = np.zeros(samples.n_classes, np.int64)
    for index in indices:
        counts += np.bincount(samples.mask(index).numpy().ravel(), minlength=len(counts))
    return counts


def class_weights(counts: NDArray[np.int64]) -> Tensor:
    """Return total/background for the background and total/foreground for every other class, (C,) float32.

    All ones, with a warning, if the background or the foreground has no voxel.
    """
    total, background = int(counts.sum()), int(counts[0])
    foreground = total - background
    weights = torch.ones(len(counts), dtype=torch.float32)
    if background == 0 or foreground == 0:
        log.warning(
            "class weights are all 1: the sampled masks have %d background and %d foreground voxels",
            background, foreground,
        )  # fmt: skip
        return weights
    weights[0] = total / background
    weights[1:] = total / foreground
    return weights
