"""Workload ``clipped_adam``: clipping of the gradient norm and Adam, over all parameters of a network.

Each arm owns its tensors and moves them on with every run. It is compared with float64 by one step from a state
whose parameters are zero, so that what was there before does not cover the step's own rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from scaffold.kernels.adam import AdamTensors, Rate, Settings, Workspaces, clipped_adam
from scaffold.kernels.adam.reference import eager
from scaffold.kernels.bench import Arm, Case, Recipe, Sizes
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import LAST, ours, relative_error
from scaffold.kernels.unet_bench.sites import NETWORKS, Network, parameter_shapes

_RATE = 1e-3
_SETTINGS = Settings(beta1=0.9, beta2=0.999, eps=1e-8, max_norm=1.0)

_FIRST_MOMENT, _SECOND_MOMENT, _STEPS = 1e-5, 1e-9, 10.0
"""Of the state that is compared. From moments of zero, Adam's step would be the gradients' signs, whatever the norm."""


def step(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the optimizer steps."""
    return [partial(_case, network, device) for network in NETWORKS[sizes]]


def _case(network: Network, device: torch.device) -> Case:
    torch.manual_seed(network.edge)
    gradients = [_dense(torch.randn(shape, device=device)) for shape in parameter_shapes(network)]
    elements = sum(gradient.numel() for gradient in gradients)
    rate = Rate(_RATE, torch.tensor(_RATE, dtype=torch.float64, device=device))

    tensors, workspaces = _tensors(gradients), Workspaces()

    def by_kernels() -> tuple[Tensor, ...]:
        return _step(clipped_adam, tensors, rate, _SETTINGS, workspaces)

    exact = functools.cache(partial(_exact, gradients, rate))
    stock_tensors = _tensors(gradients)
    by_stock = _stock(stock_tensors)
    arm = ours("clipped_adam", by_kernels)
    arms = [
        replace(arm, check=_from_start(by_kernels, tensors, gradients)),
        Arm("stock", by_stock, check=_from_start(by_stock, stock_tensors, gradients)),
    ]
    name = f"{elements / 1e6:.3g} M parameters"
    return Case(name, costs.clipped_adam(elements), arms, lambda found: relative_error(found, exact()), arm.name)


def _exact(gradients: list[Tensor], rate: Rate) -> tuple[Tensor, ...]:
    """Return the parameters after the step that is compared, in float64."""
    tensors = _tensors(gradients, torch.float64)
    return _from_start(lambda: _step(eager, tensors, rate, _SETTINGS), tensors, gradients)()


def _step(function: Callable[..., None], tensors: AdamTensors, *others: object) -> tuple[Tensor, ...]:
    function(tensors, *others)
    return tuple(tensors.parameters)


def _stock(tensors: AdamTensors) -> Callable[[], tuple[Tensor, ...]]:
    """Return a step of PyTorch's own optimizer over ``tensors``."""
    parameters = [nn.Parameter(parameter) for parameter in tensors.parameters]
    optimizer = torch.optim.Adam(parameters, lr=_RATE, betas=_SETTINGS[:2], eps=_SETTINGS.eps, fused=True)
    for parameter, gradient, first, second, steps in zip(parameters, *tensors[1:], strict=True):
        parameter.grad = gradient
        optimizer.state[parameter] = {"step": steps, "exp_avg": first, "exp_avg_sq": second}

    def run() -> tuple[Tensor, ...]:
        torch.nn.utils.clip_grad_norm_(parameters, _SETTINGS.max_norm)
        optimizer.step()
        return tuple(tensors.parameters)

    return run


def _from_start(
    run: Callable[[], tuple[Tensor, ...]], tensors: AdamTensors, gradients: list[Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that takes the step whose result is compared."""

    def check() -> tuple[Tensor, ...]:
        for own, gradient in zip(tensors.gradients, gradients, strict=True):
            own.copy_(gradient)
        parts = (tensors.parameters, tensors.exp_avgs, tensors.exp_avg_sqs, tensors.steps)
        for part, value in zip(parts, (0.0, _FIRST_MOMENT, _SECOND_MOMENT, _STEPS), strict=True):
            for tensor in part:
                tensor.fill_(value)
        return run()

    return check


def _tensors(gradients: list[Tensor], dtype: torch.dtype = torch.float32) -> AdamTensors:
    parameters, moments, squares = ([torch.zeros_like(g, dtype=dtype) for g in gradients] for _ in range(3))
    steps = [torch.zeros((), device=gradient.device) for gradient in gradients]
    return AdamTensors(parameters, [gradient.to(dtype, copy=True) for gradient in gradients], moments, squares, steps)


def _dense(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in the order in which the network keeps its parameters."""
    return tensor.contiguous(memory_format=LAST) if tensor.dim() == 5 else tensor
