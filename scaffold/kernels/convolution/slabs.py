"""The library's 3^3 convolution, with its weight gradient taken slab by slab where the tensors are large.

cuDNN's backward-weight loses most of its speed on operands of more than 2^30 elements (606 to 73 TFLOP/s on an
H200, 128->64 at 256^3). The gradient is a sum over voxels, so it can be taken over slabs of the depth: in
channels-last order a slab of one sample is a dense view, and no call sees more than a slab. Below that size slabs
gain nothing (``docs/kernels.md``).
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from scaffold.kernels.autocast import compute_dtype

MOST_ELEMENTS = 1 << 30
"""Of the larger operand of one backward-weight call."""


def convolution3(x: Tensor, weight: Tensor, slabs: int | None = None) -> Tensor:
    """Convolve: 3^3, padding 1, stride 1, no bias; ``conv3d`` in all but how the weight gradient is summed.

    Forward and input gradient are one library call each, operands are cast to the autocast dtype where
    autocast is on, memory formats are the library's. The weight gradients of several slabs come in the dtype
    of the operands, are summed in float32 (float64 for float64) in their order, and rounded once more.

    Args:
        x: (N, C, D, H, W), floating.
        weight: (CO, C, 3, 3, 3).
        slabs: of each sample in the weight gradient (``pieces``); 0 is one call for the whole batch, as the
            library does it; None takes ``planned_slabs``.

    Returns:
        (N, CO, D, H, W).

    Raises:
        ValueError: ``slabs`` is not from 0 to D - 2, or 1, or ``x`` has no batch dimension.
        RuntimeError: shapes, dtypes or devices disagree.
    """
    if x.dim() != 5:
        raise ValueError(f"x is {tuple(x.shape)}, not (N, C, D, H, W)")
    most = max(1, x.shape[2] - 2)
    if slabs is None:
        slabs = planned_slabs(tuple(x.shape), weight.shape[0])
    elif not 0 <= slabs <= most:
        raise ValueError(f"slabs = {slabs}: from 0 to {most} are possible at a depth of {x.shape[2]}")
    if slabs == 0:
        return F.conv3d(x, weight, padding=1)
    x, weight = x.to(compute_dtype(x)), weight.to(compute_dtype(weight))
    return _SlabConvolution.apply(x, weight, slabs)  # type: ignore[no-any-return, no-untyped-call]


@functools.cache
def planned_slabs(shape: tuple[int, ...], out_channels: int) -> int:
    """Return the slabs of a sample's depth that keep a call within ``MOST_ELEMENTS``; 0 if the whole batch is.

    Args:
        shape: (N, C, D, H, W).
        out_channels: CO.
    """
    samples, channels, depth, height, width = shape
    plane = max(channels, out_channels) * height * width
    if samples * depth * plane <= MOST_ELEMENTS:
        return 0
    # A slab reads a plane more at either end.
    planes = max(1, MOST_ELEMENTS // plane - 2)
    return max(1, -(-(depth - 2) // planes))


class Piece(NamedTuple):
    """Planes of the output, and the taps of the depth that all of them have inside the volume; ends excluded."""

    begin: int
    end: int
    tap_begin: int
    tap_end: int


def pieces(depth: int, slabs: int) -> list[Piece]:
    """Cut the planes of a sample: the two outermost ones, which lack a tap, and ``slabs`` slabs of the others.

    Zero padding would serve the outermost planes too, at the price of a copy of their neighbours.
    """
    outermost = [Piece(0, 1, 1, 3), Piece(depth - 1, depth, 0, 2)] if depth > 1 else [Piece(0, 1, 1, 2)]
    inner = depth - 2
    cuts = [1 + inner * index // slabs for index in range(slabs + 1)] if inner > 0 else []
    return outermost + [Piece(begin, end, 0, 3) for begin, end in pairwise(cuts)]


def slab_weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, slabs: int) -> Tensor:
    """Return the gradient of ``weight``, in its dtype and memory order.

    Args:
        dy: (N, CO, D, H, W).
        x: (N, C, D, H, W).
        weight: (CO, C, 3, 3, 3), of which the values are not used.
        slabs: of the inner planes of each sample, from 1 to D - 2.
    """
    total = torch.zeros_like(weight, dtype=torch.float64 if weight.dtype == torch.float64 else torch.float32)
    for dy_sample, x_sample in zip(torch.split(dy, 1), torch.split(x, 1), strict=True):
        for begin, end, tap_begin, tap_end in pieces(x.shape[2], slabs):
            planes = x_sample[:, :, begin + tap_begin - 1 : end + tap_end - 2]
            taps = weight[:, :, tap_begin:tap_end]
            _, gradient = _gradients(dy_sample[:, :, begin:end], planes, taps, (0, 1, 1), (False, True))
            total[:, :, tap_begin:tap_end] += gradient
    return total.to(weight.dtype)


class _SlabConvolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, slabs: int) -> Tensor:
        return F.conv3d(x, weight, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.slabs = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = _gradients(dy, x, weight, (1, 1, 1), (True, False))[0] if ctx.needs_input_grad[0] else None
        dw = slab_weight_gradient(dy, x, weight, ctx.slabs) if ctx.needs_input_grad[1] else None
        return dx, dw, None


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, int, int], wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Call the library for the gradients of the input and of the weight, as far as ``wanted``."""
    ones = (1, 1, 1)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, weight, None, ones, padding, ones, False, (0, 0, 0), 1, (*wanted, False)
    )
    return dx, dw
