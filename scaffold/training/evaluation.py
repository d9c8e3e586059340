"""The score on the validation split."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import torch

from scaffold.training.metrics import foreground_dice, hard_dice_sums
from scaffold.training.objective import objective
from scaffold.training.replicas import unwrapped
from scaffold.training.step import Batch, Learner


class Evaluation(NamedTuple):
    """Sums over this replica's samples; add those of all replicas before dividing by ``samples``.

    Attributes:
        dice_sum: sum over samples of the hard Dice, averaged over foreground classes.
        loss_sum: sum over batches of loss times batch size.
        samples: number of samples.
        batches: number of batches that were not empty.
    """

    dice_sum: float
    loss_sum: float
    samples: int
    batches: int


def evaluate(learner: Learner, batches: Iterable[Batch], max_batches: int | None = None) -> Evaluation:
    """Score the network on ``batches``; parameters and mode (train or eval) are as before. Not collective.

    Sums stay on the device until one read at the end. No batch at all gives zeros.

    Args:
        learner: its model and class weights are used.
        batches: this replica's part of the validation split.
        max_batches: stop after so many.
    """
    network, compute = unwrapped(learner.model), learner.compute
    was_training = network.training
    totals = torch.zeros(2, dtype=torch.float64, device=compute.device)
    samples = used = 0
    network.eval()
    try:
        with torch.inference_mode():
            for batch in islice(batches, max_batches):
                if not len(batch["mask"]):
                    continue
                image, labels = compute.place(batch)
                with compute.autocast():
                    logits = network(image)
                loss = objective(logits, labels, learner.weights).loss
                dice = foreground_dice(hard_dice_sums(logits, labels)).mean(dim=1)
                totals += torch.stack((dice.double().sum(), loss.double() * len(labels)))
                samples += len(labels)
                used += 1
    finally:
        network.train(was_training)
    dice_sum, loss_sum = totals.tolist()
    return Evaluation(dice_sum, loss_sum, samples, used)
