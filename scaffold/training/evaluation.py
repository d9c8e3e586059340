"""The score on the validation split."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from scaffold.training.metrics import foreground_dice, hard_dice_sums
from scaffold.training.replicas import unwrapped
from scaffold.training.step import Batch, Learner


class Evaluation(NamedTuple):
    """Sums over this replica's samples; add those of all replicas before dividing by ``samples``.

    Attributes:
        dice_sum: sum over samples of the hard Dice, averaged over foreground classes.
        loss_sum: sum over batches of loss times batch size.
        samples: number of samples.
    """

    dice_sum: float
    loss_sum: float
    samples: int


def evaluate(learner: Learner, batches: Iterable[Batch]) -> Evaluation:
    """Score the network on ``batches``; parameters and mode (train or eval) are as before. Not collective.

    Sums stay on the device until one read at the end. No batch at all gives zeros.

    Args:
        learner: its model and class weights are used.
        batches: this replica's part of the validation split.
    """
    network = unwrapped(learner.model)
    learner = dataclasses.replace(learner, model=network)
    was_training = network.training
    totals = torch.zeros(2, dtype=torch.float64, device=learner.compute.device)
    samples = 0
    network.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                if not len(batch["mask"]):
                    continue
                (sums,) = learner.graphs.validation.run(partial(_sums, learner), batch)
                totals += sums
                samples += len(batch["mask"])
    finally:
        network.train(was_training)
    dice_sum, loss_sum = totals.tolist()
    return Evaluation(dice_sum, loss_sum, samples)


def _sums(learner: Learner, batch: Batch) -> tuple[Tensor]:
    """Return the sums of Dice and loss over the samples of a batch, (2,) float64."""
    image, labels = learner.compute.place(batch)
    logits, result = learner.forward(image, labels)
    dice = foreground_dice(hard_dice_sums(logits, labels)).mean(dim=1)
    return (torch.stack((dice.double().sum(), result.loss.double() * len(labels))),)
