"""Workloads ``head_forward`` and ``head_backward``: the 1^3 convolution that makes the logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import pointwise_convolution
from scaffold.kernels.bench import Arm, Case, Cost, Recipe, Sizes
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import (
    Backward,
    activation,
    channel_products,
    dtype_on,
    filters,
    ours,
    relative_error,
)
from scaffold.kernels.unet_bench.sites import CLASSES, NETWORKS, Level

_OPERATION = "pointwise_convolution"
_PLANES, _CHANNELS = 8, 4
"""Of the part that is compared with float64."""


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return [partial(_forward_case, network.level(0), device) for network in NETWORKS[sizes]]


def backward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the backward passes."""
    return [partial(_backward_case, network.level(0), device) for network in NETWORKS[sizes]]


def _operands(site: Level, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(site.edge)
    return (
        activation(site.channels, site.edge, device),
        filters((CLASSES, site.channels, 1, 1, 1), site.channels, device),
        torch.randn(CLASSES, device=device, dtype=dtype_on(device)),
    )


def _forward_case(site: Level, device: torch.device) -> Case:
    operands = x, weight, bias = _operands(site, device)
    arms = [
        ours(_OPERATION, lambda: pointwise_convolution(*operands)),
        Arm("stock", lambda: F.conv3d(*operands)),
    ]
    exact = F.conv3d(x[:, :, :_PLANES].double(), weight.double(), bias.double())
    return _case(
        site, costs.head_forward(site, x.itemsize), arms, lambda y: relative_error([y[:, :, :_PLANES]], [exact])
    )


def _backward_case(site: Level, device: torch.device) -> Case:
    operands = x, weight, _ = _operands(site, device)
    incoming = activation(CLASSES, site.edge, device)
    arms = [
        ours(_OPERATION, Backward(pointwise_convolution, operands, [incoming])),
        Arm("stock", Backward(F.conv3d, operands, [incoming])),
    ]
    exact_dx = F.conv3d(incoming[:, :, :_PLANES].double(), weight.double().transpose(0, 1))
    exact_dw = channel_products(incoming[0], x[0, :_CHANNELS])
    exact = [exact_dx, exact_dw, incoming.double().sum((0, 2, 3, 4))]

    def error(result: tuple[Tensor, ...]) -> float:
        dx, dw, db = result
        return relative_error([dx[:, :, :_PLANES], dw[:, :_CHANNELS, 0, 0, 0], db], exact)

    return _case(site, costs.head_backward(site, x.itemsize), arms, error)


def _case(site: Level, cost: Cost, arms: list[Arm], error: Callable[..., float]) -> Case:
    name = f"{site.channels}->{CLASSES} @ {site.edge}^3"
    return Case(name, cost, arms, error, arms[0].name, "bfloat16", graph=True)
