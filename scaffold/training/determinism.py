"""What makes one training repeat another bit for bit: seeds, and algorithms that are not chosen by timing."""

from __future__ import annotations

import os
import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, the same on every rank."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_determinism(strict: bool) -> None:
    """Make results repeatable: no autotuning (it chooses by timing), deterministic cuDNN algorithms.

    Args:
        strict: also refuse operations that PyTorch knows to be non-deterministic.
    """
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(strict)
