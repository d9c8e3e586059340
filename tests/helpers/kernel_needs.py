"""What tests of kernels need of the machine: lists of marks, which skip where it is missing and say what."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device"),
    pytest.mark.timeout(300),
]
"""Sizes of production, and what only hardware does."""

COMPILER = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter compiles nothing"),
    pytest.mark.skipif(torch.version.hip is not None, reason="this Triton compiles for AMD"),
]
"""Kernels compiled for a GPU that need not be there."""
