"""What autocast makes of operands, for operations that PyTorch does not cast by itself."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which a convolution reads ``tensor``: autocast's where it is on, but float64 stays."""
    device = tensor.device.type
    castable = tensor.is_floating_point() and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(device) if castable and torch.is_autocast_enabled(device) else tensor.dtype
