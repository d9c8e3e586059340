"""Why no kernel of ours can take a call, whatever the operation: the first questions of each ``declines``."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def not_plain(*tensors: Tensor | None) -> str | None:
    """Return why operators that are opaque to PyTorch cannot take ``tensors``, or None.

    Inside a functorch transform they would have no rule, and tangents would be dropped silently; a subclass may
    hold anything (shards, fakes).
    """
    if transforming():
        return "a functorch transform is going on"
    for tensor in tensors:
        if tensor is not None and type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            return f"{type(tensor).__name__} is a subclass of Tensor"
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            return "a tensor carries a tangent of forward-mode differentiation"
    return None


def transforming() -> bool:
    """Return whether a functorch transform is going on, inside which memory formats cannot be asked for."""
    return torch._C._functorch.maybe_current_level() is not None


def no_triton(*tensors: Tensor | None) -> str | None:
    """Return why a Triton kernel cannot take ``tensors``, or None; imports no Triton.

    CPU tensors are taken by Triton's interpreter (``TRITON_INTERPRET=1``).
    """
    reason = not_plain(*tensors)
    if reason:
        return reason
    on_gpu = all(tensor is None or tensor.is_cuda for tensor in tensors)
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        return "a tensor is not on a CUDA or HIP device"
    return None if _HAS_TRITON else "Triton is not installed"
