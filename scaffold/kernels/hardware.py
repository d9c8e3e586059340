"""What kernels need to know of the device, and what the user should know of how well they are tuned for it."""

from __future__ import annotations

import functools
import logging

import torch

_log = logging.getLogger(__name__)


def is_tuned(name: str) -> bool:
    """Return whether launches were measured on the device of this name: an H200, not a slice of it nor a GH200."""
    words = name.split()
    return "H200" in words and "MIG" not in words


@functools.cache
def say_if_untuned(index: int) -> None:
    """Log, once for each device, that launches follow a heuristic if no table was measured there."""
    name = torch.cuda.get_device_properties(index).name
    if not is_tuned(name):
        _log.info("no launch table was measured on %s: the kernels' block sizes follow a heuristic", name)


@functools.cache
def multiprocessors(device: torch.device, interpreted: int = 1) -> int:
    """Return how many multiprocessors (compute units) to plan launches on ``device`` for.

    Says so if nothing was measured there.

    Args:
        device: where kernels run.
        interpreted: the answer for the CPU, Triton's interpreter.
    """
    if device.type != "cuda":
        return interpreted
    say_if_untuned(device.index)
    return torch.cuda.get_device_properties(device).multi_processor_count
