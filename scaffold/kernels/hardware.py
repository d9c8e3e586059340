"""What kernels need to know of the device, and what the user should know of how well they are tuned for it."""

from __future__ import annotations

import functools
import logging

import torch

_log = logging.getLogger(__name__)


@functools.cache
def say_untuned(index: int) -> None:
    """Log, once for each device, that launches follow a heuristic since no table was measured there."""
    name = torch.cuda.get_device_name(index)
    _log.info("no launch table was measured on %s: the kernels' block sizes follow a heuristic", name)
