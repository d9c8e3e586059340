"""Workloads ``convolution_*``: the library's 3^3 convolutions, each direction, and our slabs where we take any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import convolution3
from scaffold.kernels.bench import Arm, Case, Recipe, Sizes
from scaffold.kernels.convolution import slabs
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import Backward, activation, channel_products, filters, relative_error
from scaffold.kernels.unet_bench.sites import NETWORKS, Convolution, convolutions

_CHECKED_EDGE, _CHECKED_CHANNELS = 8, 4


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return _recipes(_forward_case, device, sizes)


def input_gradient(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the gradients of the input."""
    return _recipes(_input_gradient_case, device, sizes)


def weight_gradient(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the gradients of the weight."""
    return _recipes(_weight_gradient_case, device, sizes)


def _recipes(case: Callable[..., Case], device: torch.device, sizes: Sizes) -> list[Recipe]:
    return [partial(case, site, device) for network in NETWORKS[sizes] for site in convolutions(network)]


def library(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve as PyTorch does."""
    return F.conv3d(x, weight, padding=1)


def operands_of(site: Convolution, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a random input and weight."""
    torch.manual_seed(site.in_channels)
    x = activation(site.in_channels, site.edge, device)
    shape = (site.out_channels, site.in_channels, 3, 3, 3)
    return x, filters(shape, 27 * site.in_channels, device)


def output_corner(result: Tensor) -> Tensor:
    """Return the first voxels of an output."""
    return result[:, :, :_CHECKED_EDGE, :_CHECKED_EDGE, :_CHECKED_EDGE]


def exact_output_corner(x: Tensor, weight: Tensor) -> Tensor:
    """Return the same in float64: it depends on one plane of voxels more."""
    more = _CHECKED_EDGE + 1
    return output_corner(library(x[:, :, :more, :more, :more].double(), weight.double()))


def weight_part(gradient: Tensor) -> Tensor:
    """Return the weight gradient of the first channels."""
    return gradient[:_CHECKED_CHANNELS, :_CHECKED_CHANNELS]


def exact_weight_part(x: Tensor, incoming: Tensor) -> Tensor:
    """Return the same in float64: it depends on these channels of input and incoming gradient alone.

    As one matrix product a tap, since the library's own float64 kernels may take long.
    """
    dy = incoming[0, :_CHECKED_CHANNELS]
    padded = F.pad(x[0, :_CHECKED_CHANNELS], (1, 1, 1, 1, 1, 1))
    D, H, W = x.shape[2:]
    taps: list[Tensor] = [
        channel_products(dy, padded[:, d : d + D, h : h + H, w : w + W])
        for d in range(3)
        for h in range(3)
        for w in range(3)
    ]
    return torch.stack(taps, dim=-1).view(*taps[0].shape, 3, 3, 3)


def _forward_case(site: Convolution, device: torch.device) -> Case:
    x, weight = operands_of(site, device)
    exact = exact_output_corner(x, weight)
    return _case(site, x, [Arm("library", lambda: library(x, weight))], lambda y: [output_corner(y)], [exact])


def _input_gradient_case(site: Convolution, device: torch.device) -> Case:
    x, weight = operands_of(site, device)
    incoming = activation(site.out_channels, site.edge, device)
    run = Backward(lambda leaf: library(leaf, weight), [x], [incoming])
    # The gradient is the convolution with the weight mirrored and transposed.
    exact = exact_output_corner(incoming, weight.flip(2, 3, 4).transpose(0, 1))
    return _case(site, x, [Arm("library", run)], lambda result: [output_corner(result[0])], [exact])


def _weight_gradient_case(site: Convolution, device: torch.device) -> Case:
    x, weight = operands_of(site, device)
    incoming = activation(site.out_channels, site.edge, device)
    arms = [Arm("library", Backward(lambda leaf: library(x, leaf), [weight], [incoming]))]
    if slabs.planned_slabs(tuple(x.shape), site.out_channels):
        arms.insert(0, Arm("slabs", Backward(lambda leaf: convolution3(x, leaf), [weight], [incoming])))
    exact = exact_weight_part(x, incoming)
    return _case(site, x, arms, lambda result: [weight_part(result[0])], [exact])


def _case(
    site: Convolution, x: Tensor, arms: list[Arm], part: Callable[..., list[Tensor]], exact: list[Tensor]
) -> Case:
    return Case(
        str(site), costs.convolution(site, x.itemsize), arms, lambda result: relative_error(part(result), exact),
        arms[0].name, "bfloat16", graph=True,
    )  # fmt: skip
