"""Parameters of every kind that the U-Net has, and steps over them."""

import torch
from torch.nn.utils import clip_grad_norm_

from scaffold.kernels import ladder
from scaffold.kernels.adam import plan
from scaffold.training.adam import Adam

SHAPES = [(8, 4, 3, 3, 3), (8,), (4, 8, 2, 2, 2), (6, 8, 1, 1, 1), (6,), (1,), (5000,)]
"""Channels-last kernels, an extent of 1, odd sizes, one element, more than two chunks of ``TILE``."""

TILE = plan.Tile(2048, 1024, 4)
"""Of the tests: the interpreter takes its time for each block."""

RATE, NORM = 1e-2, 1.0


def parameters(device, dtype=torch.float32, seed=1):
    """Return seeded parameters, the 5-D ones in channels-last order."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in SHAPES:
        value = torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        if value.dim() == 5:
            value = value.contiguous(memory_format=torch.channels_last_3d)
        made.append(torch.nn.Parameter(value))
    return made


def set_gradients(parameters, step, scale=1.0):
    """Give each parameter a gradient that depends on ``step``, of the parameter's strides."""
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def stock_steps(device, steps, scale=1.0, dtype=torch.float64, rates=None):
    """Return parameters after steps of PyTorch's clipping and Adam, by default in float64."""
    made = parameters(device, dtype)
    optimizer = torch.optim.Adam(made, lr=RATE)
    for step in range(steps):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[step]
        set_gradients(made, step, scale)
        clip_grad_norm_(made, NORM)
        optimizer.step()
    return made, optimizer


def our_steps(device, steps, scale=1.0, dtype=torch.float32, rates=None):
    """Return parameters after steps of ours, their optimizer, and which rungs served."""
    made = parameters(device, dtype)
    optimizer = Adam(made, lr=RATE)
    before = ladder.served().get("clipped_adam", {})
    for step in range(steps):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[step]
        set_gradients(made, step, scale)
        optimizer.step(max_norm=NORM)
    after = ladder.served().get("clipped_adam", {})
    return made, optimizer, {name: count - before.get(name, 0) for name, count in after.items()}


def greatest_difference(these, those):
    """Return the greatest difference of any two elements."""
    pairs = zip(these, those, strict=True)
    return max((a.detach().double() - b.detach().double()).abs().max().item() for a, b in pairs)
