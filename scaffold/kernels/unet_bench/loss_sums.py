"""Workloads ``loss_sums_forward`` and ``loss_sums_backward``: the sums of cross-entropy and soft Dice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scaffold.kernels import segmentation_sums
from scaffold.kernels.bench import Arm, Case, Cost, Recipe, Sizes
from scaffold.kernels.segmentation import reference
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import Backward, activation, ours, relative_error
from scaffold.kernels.unet_bench.sites import CLASSES, NETWORKS

_OPERATION = "segmentation_sums"


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return [partial(_forward_case, network.edge, device) for network in NETWORKS[sizes]]


def backward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the backward passes."""
    return [partial(_backward_case, network.edge, device) for network in NETWORKS[sizes]]


def _operands(edge: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(edge)
    labels = torch.randint(0, CLASSES, (1, edge, edge, edge), device=device).to(torch.uint8)
    return activation(CLASSES, edge, device), labels, torch.rand(CLASSES, device=device) + 0.5


def _forward_case(edge: int, device: torch.device) -> Case:
    operands = logits, labels, weights = _operands(edge, device)
    arms = [
        ours(_OPERATION, lambda: segmentation_sums(*operands)),
        Arm("stock", lambda: reference.eager(*operands)),
    ]
    exact = reference.eager(logits.double(), labels, weights.double())
    return _case(
        edge, costs.loss_sums_forward(edge, logits.itemsize), arms, lambda found: relative_error([found], [exact])
    )


def _backward_case(edge: int, device: torch.device) -> Case:
    logits, labels, weights = _operands(edge, device)
    incoming = torch.randn((1, 1 + CLASSES, 2), device=device)
    arms = [
        ours(_OPERATION, _backward(segmentation_sums, logits, labels, weights, incoming)),
        Arm("stock", _backward(reference.eager, logits, labels, weights, incoming)),
    ]
    exact = _backward(reference.eager, logits.double(), labels, weights.double(), incoming.double())()
    return _case(
        edge, costs.loss_sums_backward(edge, logits.itemsize), arms, lambda found: relative_error(found, exact)
    )


def _backward(
    formula: Callable[..., Tensor], logits: Tensor, labels: Tensor, weights: Tensor, incoming: Tensor
) -> Backward:
    return Backward(lambda leaf: formula(leaf, labels, weights), [logits], [incoming])


def _case(edge: int, cost: Cost, arms: list[Arm], error: Callable[..., float]) -> Case:
    return Case(f"{CLASSES} @ {edge}^3", cost, arms, error, arms[0].name, graph=True)
