"""Weights in the form that the kernels read, by precision."""

from __future__ import annotations

import torch
from torch import Tensor

from scaffold.kernels.gated_stack.plan import Precision


def pack(matrix: Tensor, precision: Precision) -> Tensor:
    """Return a stack of right-hand sides as the kernels read it.

    Args:
        matrix: (layers, F, K, N) float32.
        precision: ``ieee``: K-major rows, as given. ``tf32x3``: every value as the sum of an upper part
            that tf32 holds exactly and the rest, each transposed, because the tensor cores read tf32
            operands along K only.

    Returns:
        (layers, F, K, N) for ``ieee``; (layers, 2, F, N, K) for ``tf32x3``.
    """
    if precision == "ieee":
        return matrix.contiguous()
    transposed = matrix.transpose(-1, -2).contiguous()
    high = ((transposed.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return torch.stack([high, transposed - high], dim=1)
