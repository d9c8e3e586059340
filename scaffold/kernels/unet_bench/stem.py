"""Workloads ``stem_forward`` and ``stem_weight_gradient``; the image needs no gradient."""

from __future__ import annotations

from functools import partial

import torch

from scaffold.kernels import stem_convolution
from scaffold.kernels.bench import Arm, Case, Recipe, Sizes
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import Backward, activation, ours, relative_error
from scaffold.kernels.unet_bench.convolution import (
    exact_output_corner,
    exact_weight_part,
    library,
    operands_of,
    output_corner,
    weight_part,
)
from scaffold.kernels.unet_bench.sites import NETWORKS, Convolution, stem


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return [partial(_forward_case, stem(network), device) for network in NETWORKS[sizes]]


def weight_gradient(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the gradients of the weight."""
    return [partial(_weight_gradient_case, stem(network), device) for network in NETWORKS[sizes]]


def _forward_case(site: Convolution, device: torch.device) -> Case:
    x, weight = operands_of(site, device)
    arms = [
        ours("stem_convolution", lambda: stem_convolution(x, weight)),
        Arm("stock", lambda: library(x, weight)),
    ]
    exact = exact_output_corner(x, weight)
    return Case(
        str(site), costs.convolution(site, x.itemsize), arms, lambda y: relative_error([output_corner(y)], [exact]),
        arms[0].name, "bfloat16", graph=True,
    )  # fmt: skip


def _weight_gradient_case(site: Convolution, device: torch.device) -> Case:
    x, weight = operands_of(site, device)
    incoming = activation(site.out_channels, site.edge, device)
    arms = [
        ours("stem_convolution", Backward(lambda leaf: stem_convolution(x, leaf), [weight], [incoming])),
        Arm("stock", Backward(lambda leaf: library(x, leaf), [weight], [incoming])),
    ]
    exact = exact_weight_part(x, incoming)
    return Case(
        str(site), costs.convolution(site, x.itemsize), arms,
        lambda result: relative_error([weight_part(result[0])], [exact]), arms[0].name, "bfloat16", graph=True,
    )  # fmt: skip
