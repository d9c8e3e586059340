"""Comparing tensors, and memory that shows what was never written. Every test can import this: see pyproject.toml."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

LAST = torch.channels_last_3d


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference relative to the largest exact value, wherever the two lie."""
    exact = exact.detach().double()
    return ((found.detach().to(exact.device).double() - exact).abs().max() / exact.abs().max()).item()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal as bit patterns: NaN equals itself, and -0 differs from 0."""
    kind = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill memory that PyTorch hands out without values with NaN, integers with their largest value."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4).isnan().all(), "control: memory is poisoned"
        yield
    finally:
        torch.use_deterministic_algorithms(before)
