"""One training step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from scaffold.dataset.reader import colour
from scaffold.training.graph import StepGraphs
from scaffold.training.objective import Objective, objective
from scaffold.training.optimizer import update

Batch = Mapping[str, Tensor]
"""What a loader yields: "mask" (N, D, H, W), any integer dtype, and with dense storage "image"
(N, 3, D, H, W) float32."""


@dataclass(frozen=True)
class Compute:
    """Where and how precisely to compute.

    Attributes:
        device: the accelerator, or the CPU.
        palette: (C, 3) float32, the colours of the classes, on the device; colours the images that a batch lacks.
        amp: run the network in bfloat16 where that is safe (autocast).
        dtype: of images and parameters.
        memory_format: of images.
    """

    device: torch.device
    palette: Tensor
    amp: bool
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.channels_last_3d

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context that the network's forward pass runs in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp)

    def place(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return image (N, 3, D, H, W), as the network takes it, and labels (N, D, H, W), both on the device.

        Host memory that is pinned is copied asynchronously, and in its narrow storage type.
        """
        labels = batch["mask"].to(self.device, non_blocking=True)
        dense = "image" in batch
        image = batch["image"].to(self.device, non_blocking=True) if dense else colour(labels, self.palette)
        return image.to(self.dtype, memory_format=self.memory_format), labels


@dataclass(frozen=True)
class Learner:
    """All that a training step reads or changes.

    Attributes:
        model: the network on its device, bare or replicated.
        optimizer: of its parameters.
        scheduler: of the optimizer's learning rate, or None.
        weights: (C,) class weights, on the device.
        compute: where and how precisely to compute.
        graphs: what replays the steps, where that is possible.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    weights: Tensor
    compute: Compute
    graphs: StepGraphs = field(default_factory=lambda: StepGraphs.off("not asked for"))

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Objective]:
        """Return the logits of a placed batch and its loss; a benchmark's learner has another way to them.

        The cross-entropy is normalised over each replica's own batch, so averaging gradients minimises
        the average of the replicas' losses.
        """
        with self.compute.autocast():
            logits = self.model(image)
        return logits, objective(logits, labels, self.weights)


class StepResult(NamedTuple):
    """What one step tells, without having waited for the device.

    Attributes:
        samples: samples in the batch.
        loss: () of the batch, on the device, detached.
        dice: () mean foreground soft Dice of the batch, on the device, detached.
    """

    samples: int
    loss: Tensor
    dice: Tensor


def train_step(learner: Learner, batch: Batch) -> StepResult:
    """Take one optimizer step on ``batch``. Collective when the model is replicated."""
    loss, dice = learner.graphs.training.run(partial(_take, learner), batch)
    return StepResult(len(batch["mask"]), loss, dice)


def _take(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """Take a step; return loss and Dice."""
    image, labels = learner.compute.place(batch)
    try:
        _, result = learner.forward(image, labels)
        result.loss.backward()  # type: ignore[no-untyped-call]
        update(learner.optimizer)
    finally:
        # Half a step's gradients would be added to the next.
        learner.optimizer.zero_grad(set_to_none=True)
    return result.loss.detach(), result.soft_dice.detach().mean()
