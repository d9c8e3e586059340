"""Host side of the step up's kernels: buffers, and what is launched on them in which order."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from scaffold.kernels import hardware
from scaffold.kernels.convolution import upsample_plan as plan
from scaffold.kernels.convolution.upsample_plan import Launch, Sizes, Strides

_INTERPRETER_MULTIPROCESSORS = 4
"""Enough for sums to be split at the sizes that can be interpreted."""


def forward(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """Return ``[skip, up(x)]``; arguments as for ``upsample.upsample_concatenate``, in one dtype."""
    sizes = sizes_of(x, skip.shape)
    out = empty_channels_last((sizes.batch, 2 * sizes.channels, *sizes.fine), x)
    wide = _wide(x, skip, out)
    tile = plan.forward_tile(sizes, x.itemsize)
    launch = plan.forward_launch(sizes, strides_of(x), strides_of(skip), tile, copy_skip=True, wide=wide)
    run(launch, x, weight, bias, skip, out, sizes.cells)
    return out


def input_gradient(grad: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Return dx, dense in channels-last order.

    Args:
        grad: (N, 2 C, D, H, W), gradient of the whole concatenation; its channels have stride 1.
        weight: (2 C, C, 2, 2, 2), dense in channels-last order.
        x: for its shape.
    """
    sizes = sizes_of(x, grad.shape)
    dx = empty_channels_last(tuple(x.shape), x)
    tile = plan.input_gradient_tile(sizes, x.itemsize, multiprocessors(x.device))
    launch = plan.input_gradient_launch(sizes, strides_of(grad), tile, wide=_wide(grad, dx))
    if tile.splits == 1:
        run(launch, grad, weight, dx, sizes.voxels)
        return dx
    shares = torch.empty((tile.splits, dx.numel()), dtype=torch.float32, device=x.device)
    run(launch, grad, weight, shares, sizes.voxels)
    run(plan.sum_shares_launch(tile.splits, dx.numel()), shares, dx, dx.numel())
    return dx


def weight_gradient(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return dW, dense in channels-last order, and db; arguments as for ``input_gradient``."""
    sizes = sizes_of(x, grad.shape)
    C = sizes.channels
    dw = empty_channels_last((2 * C, C, 2, 2, 2), x)
    db = x.new_empty((C,))
    tile = plan.weight_gradient_tile(sizes, x.itemsize, multiprocessors(x.device))
    launch = plan.weight_gradient_launch(sizes, strides_of(x), strides_of(grad), tile, wide=_wide(x, grad))
    column_sums = torch.empty((tile.splits * 8, C), dtype=torch.float32, device=x.device)
    if tile.splits == 1:
        run(launch, x, grad, dw, column_sums, sizes.voxels)
    else:
        shares = torch.empty((tile.splits, dw.numel()), dtype=torch.float32, device=x.device)
        run(launch, x, grad, shares, column_sums, sizes.voxels)
        run(plan.sum_shares_launch(tile.splits, dw.numel()), shares, dw, dw.numel())
    run(plan.sum_shares_launch(8 * tile.splits, C), column_sums, db, C)
    return dw, db


def run(launch: Launch, *arguments: Any) -> None:
    """Launch a kernel on the current device."""
    from scaffold.kernels.convolution import upsample_kernels

    kernel = getattr(upsample_kernels, f"{launch.kernel}_kernel")
    constants = dict(launch.constants)
    if "UPCAST" in kernel.arg_names:
        constants["UPCAST"] = os.environ.get("TRITON_INTERPRET") == "1"
    kernel[launch.grid](*arguments, **constants)


def sizes_of(x: Tensor, fine_shape: torch.Size) -> Sizes:
    """Return the sizes of a call from ``x`` and the shape of the skip, or of the concatenation."""
    batch, channels, *coarse = x.shape
    d, h, w = coarse
    D, H, W = fine_shape[2:]
    return Sizes(batch, channels // 2, (d, h, w), (D, H, W))


def strides_of(tensor: Tensor) -> Strides:
    """Return the strides that matter; one along a single element says nothing, and would cost a compilation."""
    strides = [stride if size > 1 else 0 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    return Strides(strides[0], *strides[2:])


def empty_channels_last(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised dense channels-last tensor of the dtype and device of ``like``."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last_3d)


def multiprocessors(device: torch.device) -> int:
    """Return the device's number of multiprocessors (compute units)."""
    return hardware.multiprocessors(device, interpreted=_INTERPRETER_MULTIPROCESSORS)


def _wide(*tensors: Tensor) -> bool:
    """Whether an offset into one of the tensors needs 64 bits."""
    return any(_span(tensor) >= plan.WIDE_FROM for tensor in tensors)


def _span(tensor: Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
