"""The optimizer with its gradient clipping, and the learning-rate schedule.

There is no gradient scaler: bfloat16 has the exponent range of float32, so no loss scale is needed, no
step is ever skipped, and every step counts as an applied one.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler

from scaffold.config import RunConfig
from scaffold.training.adam import Adam

MAX_GRADIENT_NORM = 1.0

_OPTIMIZERS: dict[str, type[Adam | SGD | RMSprop]] = {"ADAM": Adam, "SGD": SGD, "RMSProp": RMSprop}


def build_optimizer(config: RunConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return the optimizer of ``config`` with PyTorch's defaults, apart from the learning rate."""
    return _OPTIMIZERS[config.optimizer](parameters, lr=config.starting_learning_rate)


def build_scheduler(config: RunConfig, optimizer: Optimizer) -> LRScheduler | None:
    """Return the schedule, to be stepped once after each epoch; None if ``disable_scheduler``.

    Cosine annealing with warm restarts (Loshchilov and Hutter: SGDR, 2017): periods of T_0, T_0 * T_mult,
    ... epochs, each from ``starting_learning_rate`` down to ``min_learning_rate``.
    """
    if config.disable_scheduler:
        return None
    return CosineAnnealingWarmRestarts(optimizer, config.T_0, config.T_mult, config.min_learning_rate)


def update(optimizer: Optimizer) -> None:
    """Scale all gradients together so that their L2 norm is at most ``MAX_GRADIENT_NORM``, and take a step.

    Does not wait for the device.
    """
    if isinstance(optimizer, Adam):
        optimizer.step(max_norm=MAX_GRADIENT_NORM)
        return
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_GRADIENT_NORM)
    optimizer.step()
