"""GroupNorm + ReLU in plain PyTorch: the contract of the kernels, on any device and for any floating dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from scaffold.kernels.refusals import transforming

Gather = Callable[[Tensor], Tensor]
"""Concatenates the partial results of all blocks of a sample along dimension 0, in the same order on
every rank. Collective among the ranks that share the sample."""


def group_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5, partials: Gather | None = None
) -> Tensor:
    """Return ``relu(group_norm(x))`` as ``op.group_norm_relu`` documents it."""
    if groups < 1 or x.shape[1] % groups:
        raise RuntimeError(f"the {x.shape[1]} channels of x are not divisible into {groups} groups")
    if partials is not None:
        return _BlockGroupNormReLU.apply(x, weight, bias, groups, eps, partials)  # type: ignore[no-any-return, no-untyped-call]
    wide = _accumulator(x)
    # Widened here, not in the operator: its mixed-type CPU path is 8 times slower than these casts.
    y = F.relu(F.group_norm(x.to(wide), groups, weight.to(wide), bias.to(wide), eps)).to(x.dtype)
    return y if transforming() else y.contiguous(memory_format=memory_format(x))


def group_norm_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return ``y = relu(group_norm(x))`` and ``max_pool3d(y, 2)`` as ``op.group_norm_relu_pool`` documents them."""
    y = group_norm_relu(x, weight, bias, groups, eps)
    # Autocast on a CPU would pool in float32, although a maximum rounds nothing.
    with torch.autocast(x.device.type, enabled=False):
        return y, F.max_pool3d(y, 2)


def memory_format(x: Tensor) -> torch.memory_format:
    """Return ``channels_last_3d`` if ``x`` (5-D) is dense in that order, else ``contiguous_format``."""
    last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return torch.channels_last_3d if last else torch.contiguous_format


def merge(moments: Tensor) -> Tensor:
    """Merge counts, means and sums of squared deviations (parts, ..., 3) to (..., 3).

    By the rule of Chan, Golub and LeVeque (1983) for any number of parts.
    """
    count, mean, m2 = moments.unbind(-1)
    total = count.sum(0)
    merged = (count * mean).sum(0) / total
    return torch.stack((total, merged, (m2 + count * (mean - merged) ** 2).sum(0)), dim=-1)


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _BlockGroupNormReLU(torch.autograd.Function):
    """The operation on one block of a sample; moments of planes are merged in global order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, partials: Gather) -> Tensor:
        v = _grouped(x, groups)
        variance, mean = torch.var_mean(v, dim=(2, 4, 5), correction=0)
        count = torch.full_like(mean, v[0, 0, :, 0].numel())
        moments = torch.stack((count, mean, variance * count), dim=-1).movedim(2, 0)
        total, merged, m2 = merge(partials(moments)).unbind(-1)
        rstd = torch.rsqrt(m2 / total + eps)
        ctx.save_for_backward(x, weight, bias, merged, rstd, total)
        ctx.groups, ctx.partials = groups, partials
        y = F.relu(_affine(_normalised(v, merged, rstd), weight, bias)).flatten(1, 2)
        return y.to(x.dtype).contiguous(memory_format=memory_format(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd, total = ctx.saved_tensors
        groups = ctx.groups
        xhat = _normalised(_grouped(x, groups), mean, rstd)
        dy = _grouped(gradients[0], groups).masked_fill(_affine(xhat, weight, bias) <= 0, 0)
        dyw = dy * _per_channel(weight, dy)
        sums = torch.stack((dyw.sum((2, 4, 5)), (dyw * xhat).sum((2, 4, 5))), dim=-1).movedim(2, 0)
        c1, c2 = (ctx.partials(sums).sum(0) / total[..., None]).unbind(-1)
        dx = _per_group(rstd) * (dyw - _per_group(c1) - xhat * _per_group(c2))
        dx = dx.flatten(1, 2).to(x.dtype).contiguous(memory_format=memory_format(x))
        dweight = (dy * xhat).sum((0, 3, 4, 5)).flatten().to(weight.dtype)
        dbias = dy.sum((0, 3, 4, 5)).flatten().to(bias.dtype)
        return dx, dweight, dbias, None, None, None


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Return ``x`` in the accumulator's type as (N, G, C/G, D, H, W)."""
    N, C, *extents = x.shape
    return x.to(_accumulator(x)).view(N, groups, C // groups, *extents)


def _per_group(values: Tensor) -> Tensor:
    return values[:, :, None, None, None, None]


def _per_channel(values: Tensor, v: Tensor) -> Tensor:
    return values.to(v.dtype).view(v.shape[1], v.shape[2], 1, 1, 1)


def _normalised(v: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return (v - _per_group(mean)) * _per_group(rstd)


def _affine(xhat: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return xhat * _per_channel(weight, xhat) + _per_channel(bias, xhat)
