"""A few slices of what the trained network sees, knows and predicts, for the gallery of the report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import default_collate

from scaffold import atomic
from scaffold.training.metrics import foreground_dice, hard_dice_sums
from scaffold.training.replicas import unwrapped
from scaffold.training.step import Learner

if TYPE_CHECKING:
    from scaffold.dataset.reader import Samples

SHOWN = 4
_CANDIDATES = 16


def write(path: Path, learner: Learner, samples: Samples) -> None:
    """Predict a few validation samples and write their fullest slices. Not collective: on rank 0.

    The file is an npz without pickles, n <= 4: ``image`` (n, 3, H, W) float32, ``truth`` and
    ``prediction`` (n, H, W) int16, ``sample_id`` (n,) int64, ``depth`` (n,) int64 (which slice along D),
    ``dice`` (n,) float32 (mean foreground hard Dice of the whole sample), ``palette`` (C, 3) float32.

    Args:
        path: the file to make.
        learner: with the trained network.
        samples: the validation split.

    Raises:
        WriteError: the file system refused.
    """
    network, compute = unwrapped(learner.model), learner.compute
    was_training = network.training
    network.eval()
    slices: dict[str, list[object]] = {name: [] for name in ("image", "truth", "prediction", "depth", "dice")}
    chosen = fullest(samples)
    try:
        with torch.inference_mode():
            for index in chosen:
                image, labels = compute.place(default_collate([samples[index]]))
                with compute.autocast():
                    logits = network(image)
                depth = int((labels[0] > 0).sum(dim=(1, 2)).argmax())
                slices["image"].append(image[0, :, depth].float().cpu().numpy())
                slices["truth"].append(labels[0, depth].cpu().numpy().astype(np.int16))
                slices["prediction"].append(logits[0, :, depth].argmax(dim=0).cpu().numpy().astype(np.int16))
                slices["depth"].append(depth)
                slices["dice"].append(float(foreground_dice(hard_dice_sums(logits, labels)).mean()))
    finally:
        network.train(was_training)
    with atomic.write(path) as file:
        np.savez_compressed(
            file,
            image=np.stack(slices["image"]),  # type: ignore[arg-type]
            truth=np.stack(slices["truth"]),  # type: ignore[arg-type]
            prediction=np.stack(slices["prediction"]),  # type: ignore[arg-type]
            sample_id=np.array([samples.sample_id(index) for index in chosen], np.int64),
            depth=np.array(slices["depth"], np.int64),
            dice=np.array(slices["dice"], np.float32),
            palette=np.asarray(samples.palette, np.float32),
        )
    logging.getLogger("scaffold").debug("predicted the samples %s", chosen)


def fullest(samples: Samples) -> list[int]:
    """Return up to four samples with the most foreground, of sixteen spread evenly over the split.

    Reading every mask of a large data set to choose four pictures would take longer than an epoch.
    """
    length = len(samples)
    candidates = sorted({int(index) for index in np.linspace(0, length - 1, min(length, _CANDIDATES))})
    foreground = {index: int(torch.count_nonzero(samples.mask(index))) for index in candidates}
    return sorted(candidates, key=lambda index: (-foreground[index], index))[:SHOWN]
