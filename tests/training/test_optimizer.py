"""Optimizer, schedule and clipping."""

import math

import pytest
import torch
from tiny_learner import CONFIG

from scaffold.training.optimizer import build_optimizer, build_scheduler, update


def parameters():
    return [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(("name", "kind"), [("ADAM", "Adam"), ("SGD", "SGD"), ("RMSProp", "RMSprop")])
def test_optimizer_is_the_named_one_with_defaults(name, kind):
    """Momentum or weight decay would be another benchmark."""
    config = CONFIG.model_copy(update={"optimizer": name, "starting_learning_rate": 0.02})
    optimizer = build_optimizer(config, parameters())
    assert type(optimizer).__name__ == kind
    defaults = getattr(torch.optim, kind)(parameters(), lr=0.02).defaults
    assert optimizer.defaults == defaults


def test_schedule_is_a_cosine_with_lengthening_periods():
    """The learning rate of each epoch is part of the benchmark."""
    changes = {"starting_learning_rate": 1.0, "min_learning_rate": 0.1, "T_0": 4, "T_mult": 2}
    config = CONFIG.model_copy(update=changes)
    optimizer = build_optimizer(config, parameters())
    scheduler = build_scheduler(config, optimizer)
    rates = []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    periods = [(epoch, 4) for epoch in range(4)] + [(epoch, 8) for epoch in range(8)] + [(0, 16), (1, 16)]
    assert rates == pytest.approx([0.1 + 0.45 * (1 + math.cos(math.pi * t / length)) for t, length in periods])


def test_schedule_can_be_switched_off():
    """The key must have an effect."""
    config = CONFIG.model_copy(update={"disable_scheduler": True})
    assert build_scheduler(config, build_optimizer(config, parameters())) is None


@pytest.mark.parametrize(("scale", "norm"), [(10.0, 1.0), (0.1, 0.1 * math.sqrt(5))])
def test_clipping_bounds_the_global_norm(scale, norm):
    """Clipped per tensor, or always scaled to 1, the direction or the length would be wrong."""
    both = parameters()
    optimizer = build_optimizer(CONFIG.model_copy(update={"optimizer": "SGD", "starting_learning_rate": 1.0}), both)
    for parameter in both:
        parameter.grad = torch.full_like(parameter, scale)
    update(optimizer)
    moved = 1 - torch.cat([parameter.detach() for parameter in both])
    assert moved.norm().item() == pytest.approx(norm, rel=1e-5)
    assert moved.min() == moved.max()
