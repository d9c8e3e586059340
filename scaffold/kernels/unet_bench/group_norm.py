"""Workloads ``group_norm_forward`` and ``group_norm_backward``: GroupNorm + ReLU, with pooling and without.

The stock arms end with what their consumer does next under autocast, so that all arms hand on the same:
a cast to bfloat16, and to channels-last order in the arm that began in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scaffold.kernels import group_norm_relu, group_norm_relu_pool
from scaffold.kernels.bench import Arm, Case, Recipe, Result, Sizes
from scaffold.kernels.group_norm import reference
from scaffold.kernels.unet_bench import costs
from scaffold.kernels.unet_bench.arms import LAST, Backward, activation, ours, relative_error
from scaffold.kernels.unet_bench.sites import GROUPS, NETWORKS, Norm, norms

_PLAIN = torch.contiguous_format


def forward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the forward passes."""
    return _recipes(_forward_case, device, sizes)


def backward(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the backward passes."""
    return _recipes(_backward_case, device, sizes)


def _recipes(case: Callable[..., Case], device: torch.device, sizes: Sizes) -> list[Recipe]:
    found: list[Recipe] = []
    for network in NETWORKS[sizes]:
        sites = norms(network)
        compiled = device.type == "cuda"
        found += [partial(case, site, device, compiled and site == sites[0]) for site in sites]
    return found


class _Operands:
    """Random operands of a site, and the formulas on them."""

    def __init__(self, site: Norm, device: torch.device) -> None:
        torch.manual_seed(site.channels)
        self.site = site
        self.x = activation(site.channels, site.edge, device)
        self.weight = torch.rand(site.channels, device=device) + 0.5
        self.bias = torch.randn(site.channels, device=device)
        self.incoming = [activation(site.channels, site.edge, device)]
        if site.pooled:
            self.incoming.append(activation(site.channels, site.edge // 2, device))

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.weight, self.bias

    @property
    def contiguous(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x.contiguous(), self.weight, self.bias

    @property
    def contiguous_incoming(self) -> list[Tensor]:
        return [gradient.contiguous() for gradient in self.incoming]

    @property
    def formula(self) -> Callable[..., Result]:
        """Ours."""
        function: Callable[..., Any] = group_norm_relu_pool if self.site.pooled else group_norm_relu
        return lambda x, weight, bias: function(x, weight, bias, GROUPS)

    def error(self, found: Callable[[Any, int], list[Tensor]], exact: Callable[..., list[Tensor]]) -> Any:
        """Return the error of the first group: it depends on its own channels alone.

        Args:
            found: takes a result and the number of a group's channels; returns their part.
            exact: the same from their operands in float64.
        """
        channels = self.site.channels // GROUPS

        @functools.cache
        def exact_part() -> list[Tensor]:
            return exact(self.x[:, :channels].double(), self.weight[:channels].double(), self.bias[:channels].double())

        return lambda result: relative_error(found(result, channels), exact_part())

    def one_group(self, *tensors: Tensor) -> Result:
        """The formula for a single group, in any dtype."""
        function: Callable[..., Any] = reference.group_norm_relu_pool if self.site.pooled else reference.group_norm_relu
        return function(*tensors, 1)  # type: ignore[no-any-return]


def _forward_case(site: Norm, device: torch.device, compiled: bool) -> Case:
    operands = _Operands(site, device)
    formula, stock, stock_plain = operands.formula, _stock(site, LAST), _stock(site, _PLAIN)
    last, plain = operands.all, operands.contiguous
    arms = [
        ours(_operation(site), lambda: formula(*last)),
        Arm("stock", lambda: stock(*last)),
        Arm("stock contiguous", lambda: stock_plain(*plain)),
    ]
    if compiled:
        form = _compiled(stock_plain)
        arms.append(Arm("stock compiled", lambda: form(*plain), compiles=True))

    def part(result: Result, channels: int) -> list[Tensor]:
        return [tensor[:, :channels] for tensor in _listed(result)]

    error = operands.error(part, lambda *head: _listed(operands.one_group(*head)))
    cost = costs.group_norm_forward(site, operands.x.itemsize)
    return Case(str(site), cost, arms, error, arms[0].name, graph=True)


def _backward_case(site: Norm, device: torch.device, compiled: bool) -> Case:
    operands = _Operands(site, device)
    plain, incoming = operands.contiguous, operands.contiguous_incoming
    arms = [
        ours(_operation(site), Backward(operands.formula, operands.all, operands.incoming)),
        Arm("stock", Backward(_stock(site, LAST), operands.all, operands.incoming)),
        Arm("stock contiguous", Backward(_stock(site, _PLAIN), plain, incoming)),
    ]
    if compiled:
        arms.append(Arm("stock compiled", Backward(_compiled(_stock(site, _PLAIN)), plain, incoming), compiles=True))

    def part(result: tuple[Tensor, ...], channels: int) -> list[Tensor]:
        dx, dweight, dbias = result
        dx = dx[:, :channels].double()
        # Rounding makes ties of what the pooling compares, so each arm routes some gradients to another voxel
        # of the same window; the window's sum shows nothing of that.
        return [F.avg_pool3d(dx, 2) if site.pooled else dx, dweight[:channels], dbias[:channels]]

    def exact(*head: Tensor) -> list[Tensor]:
        channels = head[0].shape[1]
        gradients = [gradient[:, :channels].double() for gradient in operands.incoming]
        return part(Backward(operands.one_group, head, gradients)(), channels)

    cost = costs.group_norm_backward(site, operands.x.itemsize)
    return Case(str(site), cost, arms, operands.error(part, exact), arms[0].name, graph=True)


def _operation(site: Norm) -> str:
    return "group_norm_relu_pool" if site.pooled else "group_norm_relu"


def _stock(site: Norm, order: torch.memory_format) -> Callable[..., Result]:
    """Return PyTorch's way, under autocast where activations are narrow; ``order`` is that of its input."""

    def formula(x: Tensor, weight: Tensor, bias: Tensor) -> Result:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            y = F.relu(F.group_norm(x, GROUPS, weight, bias))
            pooled = F.max_pool3d(y, 2) if site.pooled else None
        results = [tensor.to(x.dtype, memory_format=order) for tensor in (y, pooled) if tensor is not None]
        return results[0] if pooled is None else tuple(results)

    return formula


def _compiled(formula: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``formula`` compiled so that its backward pass can be repeated."""
    form = torch.compile(formula, dynamic=False)

    def call(*operands: Tensor) -> Result:
        # By default a compiled backward pass takes the memory of what the forward pass saved.
        with torch._functorch.config.patch(donated_buffer=False):
            return form(*operands)

    return call


def _listed(result: Result) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
