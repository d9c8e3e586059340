"""``scaffold train`` with PyTorch's own modules: the trainer's stock arm.

    python benchmarks/stock_training.py --config STUDY --data META --output DIR

The arguments are those of the verb. Everything is the trainer's (data, schedule, clipping, validation, checkpoints,
statistics) except the step: `StockUNet` and `stock_loss` in contiguous order, compiled as one function, and
PyTorch's fused Adam, which is the fastest stock form that `step.py` finds. The initial weights are the trainer's for
the same seed, bit for bit. Compilation falls into the warm-up, with the rest of what the trainer does not time. cuDNN
may choose algorithms that are not deterministic, as it may by default and in `step.py`: the trainer's demand is none
of stock's.

To continue, give the same command again; the `restart.sh` in the work folder starts the verb itself, which has
another network. `--backend NAME` takes another backend of the compiler than Inductor, `--backend none` no compiler.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import script
from stock_unet import StockUNet, copy_weights, stock_terms

from scaffold import cli
from scaffold.cli import train
from scaffold.config import Job
from scaffold.model.unet import build as build_network
from scaffold.parallel.launch import Context
from scaffold.training.objective import Objective
from scaffold.training.optimizer import build_scheduler
from scaffold.training.step import Compute, Learner
from scaffold.training.worker import Data

Forward = Callable[[Tensor, Tensor], tuple[Tensor, Objective]]


@dataclass(frozen=True, kw_only=True)
class StockLearner(Learner):
    """A learner whose forward pass and loss are one function of stock operations.

    Attributes:
        stock: of an image and its labels.
    """

    stock: Forward

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Objective]:
        """Return the logits of a placed batch and its loss."""
        return self.stock(image, labels)


def stock_learner(context: Context, job: Job, data: Data, backend: str = "inductor") -> StockLearner:
    """Return the untrained stock network with the trainer's initial weights, and its optimizer.

    Args:
        context: this rank.
        job: what to train.
        data: its data set.
        backend: of the compiler, or "none".
    """
    config, device = job.config, context.device
    torch.backends.cudnn.deterministic = False
    ours = build_network(config)
    # The trainer's generators go on as if there were one network only.
    with torch.random.fork_rng(devices=[]):
        network = StockUNet(
            config.unet_layers, config.n_categories + 1, config.unet_base_channels, config.group_norm_groups
        )
    copy_weights(ours, network)
    network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.starting_learning_rate, fused=device.type == "cuda")
    weights = torch.ones(data.training.n_classes, device=device)
    palette = data.training.palette.to(device)
    compute = Compute(device, palette, config.torch_amp, memory_format=torch.contiguous_format)

    def forward(image: Tensor, labels: Tensor) -> tuple[Tensor, Objective]:
        with compute.autocast():
            logits = network(image)
        cross_entropy, soft_dice = stock_terms(logits, labels.long(), weights)
        loss = cross_entropy + 1 - soft_dice.mean()
        # A compiled function would compute with a gradient of zeros for each further output that had one.
        return logits.detach(), Objective(loss, cross_entropy.detach(), soft_dice.detach())

    return StockLearner(
        model=network,
        optimizer=optimizer,
        scheduler=build_scheduler(config, optimizer),
        weights=weights,
        compute=compute,
        stock=forward if backend == "none" else torch.compile(forward, dynamic=False, backend=backend),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the verb does; leaves the process with its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backend", default="inductor")
    options, verb = parser.parse_known_args(arguments)
    train.run(cli.parse(["train", *verb]), partial(stock_learner, backend=options.backend))


if __name__ == "__main__":
    script.run(main)
