"""Workloads ``upsample_forward`` and ``upsample_backward``: transposed convolution and concatenation with the skip."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import upsample_concatenate
from scaffold.kernels.bench import Arm, Case, Cost, Recipe, Sizes
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import Backward, activation, dtype_on, filters, ours, relative_error
from scaffold.kernels.unet_bench.sites import NETWORKS, Level, steps_up

_OPERATION = "upsample_concatenate"
_COARSE_EDGE, _CHANNELS = 4, 4
"""Of the part that is compared with float64."""


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return _recipes(_forward_case, device, sizes)


def backward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the backward passes."""
    return _recipes(_backward_case, device, sizes)


def _recipes(case: Callable[..., Case], device: torch.device, sizes: Sizes) -> list[Recipe]:
    return [partial(case, site, device) for network in NETWORKS[sizes] for site in steps_up(network)]


def _stock(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    return torch.cat((skip, F.conv_transpose3d(x, weight, bias, stride=2)), dim=1)


def _operands(site: Level, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(site.channels)
    wide = 2 * site.channels
    return (
        activation(wide, site.edge // 2, device),
        filters((wide, site.channels, 2, 2, 2), wide, device),
        torch.randn(site.channels, device=device, dtype=dtype_on(device)),
        activation(site.channels, site.edge, device),
    )


def _corner(tensor: Tensor, edge: int) -> Tensor:
    return tensor[:, :, :edge, :edge, :edge]


def _forward_case(site: Level, device: torch.device) -> Case:
    operands = x, weight, bias, skip = _operands(site, device)
    arms = [
        ours(_OPERATION, lambda: upsample_concatenate(*operands)),
        Arm("stock", lambda: _stock(*operands)),
    ]
    coarse, fine = _corner(x, _COARSE_EDGE), _corner(skip, 2 * _COARSE_EDGE)
    exact = _stock(*(tensor.double() for tensor in (coarse, weight, bias, fine)))
    return _case(
        site, costs.upsample_forward(site, x.itemsize), arms,
        lambda y: relative_error([_corner(y, 2 * _COARSE_EDGE)], [exact]),
    )  # fmt: skip


def _backward_case(site: Level, device: torch.device) -> Case:
    operands = x, weight, _, _ = _operands(site, device)
    incoming = activation(2 * site.channels, site.edge, device)
    # The skip's gradient is a view of the incoming one in ours, as it is in the stock formula.
    arms = [
        ours(_OPERATION, Backward(upsample_concatenate, operands, [incoming])),
        Arm("stock", Backward(_stock, operands, [incoming])),
    ]
    upper = incoming[:, site.channels :]
    # Each gradient from the least part of the operands that it depends on.
    corner = _corner(upper, 2 * _COARSE_EDGE).double()
    exact_dx = F.conv3d(corner, weight.double(), stride=2)
    narrow = [x[:, :_CHANNELS].double(), weight[:_CHANNELS, :_CHANNELS].double()]
    _, exact_dw = Backward(
        lambda x, weight: F.conv_transpose3d(x, weight, stride=2), narrow, [upper[:, :_CHANNELS].double()]
    )()
    exact_db = upper[:, :_CHANNELS].double().sum((0, 2, 3, 4))
    exact_dskip = _corner(incoming[:, : site.channels], 2 * _COARSE_EDGE).double()

    def error(result: tuple[Tensor, ...]) -> float:
        dx, dw, db, dskip = result
        found = [
            _corner(dx, _COARSE_EDGE),
            dw[:_CHANNELS, :_CHANNELS],
            db[:_CHANNELS],
            _corner(dskip, 2 * _COARSE_EDGE),
        ]
        return relative_error(found, [exact_dx, exact_dw, exact_db, exact_dskip])

    return _case(site, costs.upsample_backward(site, x.itemsize), arms, error)


def _case(site: Level, cost: Cost, arms: list[Arm], error: Callable[..., float]) -> Case:
    name = f"{2 * site.channels}->{site.channels} @ {site.edge}^3"
    return Case(name, cost, arms, error, arms[0].name, "bfloat16", graph=True)
