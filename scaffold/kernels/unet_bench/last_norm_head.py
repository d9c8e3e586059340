"""Workloads ``last_norm_head_forward`` and ``last_norm_head_backward``: the last GroupNorm, ReLU and the head in one.

Arms: ours; the two operations that it replaces, ours as well; and stock. All are compared with float64 by what one
group of the normalisation contributes: the gradients of its channels, and logits whose weights elsewhere are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import group_norm_relu_pointwise
from scaffold.kernels.bench import Arm, Case, Cost, Recipe, Sizes
from scaffold.kernels.head.op import separate
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import Backward, activation, dtype_on, filters, ours, relative_error
from scaffold.kernels.unet_bench.sites import CLASSES, GROUPS, NETWORKS, Level

_OPERATION = "group_norm_relu_pointwise"


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return [partial(_forward_case, network.level(0), device) for network in NETWORKS[sizes]]


def backward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the backward passes."""
    return [partial(_backward_case, network.level(0), device) for network in NETWORKS[sizes]]


def _operands(site: Level, device: torch.device) -> tuple[Tensor, ...]:
    torch.manual_seed(site.edge)
    weight = filters((CLASSES, site.channels, 1, 1, 1), site.channels, device)
    # So that logits depend on the channels of the first group alone.
    weight[:, site.channels // GROUPS :] = 0
    return (
        activation(site.channels, site.edge, device),
        torch.rand(site.channels, device=device) + 0.5,
        torch.randn(site.channels, device=device),
        weight,
        torch.randn(CLASSES, device=device, dtype=dtype_on(device)),
    )


def _fused(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return group_norm_relu_pointwise(x, norm_weight, norm_bias, weight, bias, GROUPS)


def _separate(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return separate(x, norm_weight, norm_bias, weight, bias, GROUPS)


def _stock(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        return F.conv3d(F.relu(F.group_norm(x, GROUPS, norm_weight, norm_bias)), weight, bias)


def _first_group(operands: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the operands of the first group, in float64."""
    x, norm_weight, norm_bias, weight, bias = operands
    channels = x.shape[1] // GROUPS
    parts = (x[:, :channels], norm_weight[:channels], norm_bias[:channels], weight[:, :channels], bias)
    return [part.double() for part in parts]


def _one_group(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv3d(F.relu(F.group_norm(x, 1, norm_weight, norm_bias)), weight, bias)


def _forward_case(site: Level, device: torch.device) -> Case:
    operands = _operands(site, device)
    arms = [
        ours(_OPERATION, lambda: _fused(*operands)),
        Arm("two operations", lambda: _separate(*operands), compiles=True),
        Arm("stock", lambda: _stock(*operands)),
    ]
    exact = _one_group(*_first_group(operands))
    cost = costs.last_norm_head_forward(site, operands[0].itemsize)
    return _case(site, cost, arms, lambda logits: relative_error([logits], [exact]))


def _backward_case(site: Level, device: torch.device) -> Case:
    operands = _operands(site, device)
    incoming = [activation(CLASSES, site.edge, device)]
    arms = [
        ours(_OPERATION, Backward(_fused, operands, incoming)),
        Arm("two operations", Backward(_separate, operands, incoming), compiles=True),
        Arm("stock", Backward(_stock, operands, incoming)),
    ]
    exact = Backward(_one_group, _first_group(operands), [incoming[0].double()])()
    channels = site.channels // GROUPS

    def error(result: tuple[Tensor, ...]) -> float:
        dx, of_norm_weight, of_norm_bias, of_weight, of_bias = result
        found = (dx[:, :channels], of_norm_weight[:channels], of_norm_bias[:channels], of_weight[:, :channels], of_bias)
        return relative_error(found, exact)

    return _case(site, costs.last_norm_head_backward(site, operands[0].itemsize), arms, error)


def _case(site: Level, cost: Cost, arms: list[Arm], error: Callable[..., float]) -> Case:
    name = f"{site.channels}->{CLASSES} @ {site.edge}^3"
    return Case(name, cost, arms, error, arms[0].name, "bfloat16", graph=True)
