"""Weights in the form that the kernels read, by precision."""

from __future__ import annotations

import torch
from torch import Tensor

from scaffold.kernels.gated_stack.plan import Precision


def pack(matrix: Tensor, step: int, precision: Precision) -> Tensor:
    """Return a stack of right-hand sides as the kernels read it.

    ``tf32x3`` stores every value as the sum of an upper part that tf32 holds exactly and the rest, and
    each K tile as one contiguous block with K fastest, because the tensor cores read tf32 operands along
    K only.

    Args:
        matrix: (layers, F, K, N) float32.
        step: rows of a K tile; divides K.
        precision: ``ieee`` or ``tf32x3``.

    Returns:
        (layers, F, K, N) for ``ieee``; (layers, 2, F, K / step, N, step) for ``tf32x3``.
    """
    if precision == "ieee":
        return matrix.contiguous()
    *front, depth, width = matrix.shape
    tiles = matrix.reshape(*front, depth // step, step, width).transpose(-1, -2).contiguous()
    high = ((tiles.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return torch.stack([high, tiles - high], dim=1)
