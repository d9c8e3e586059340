"""What the device can do at best, measured in the same run."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import torch

from scaffold.kernels.bench.case import Arithmetic
from scaffold.kernels.bench.timing import time_in_rounds


class Ceilings(NamedTuple):
    """What the device can do, measured."""

    bytes_per_s: float
    """Device copy, counting bytes read and written."""
    flops_per_s: float
    """A large float32 product of the vendor's library."""
    tensor_flops_per_s: float
    """The same in tf32; the float32 rate where there is none."""
    bfloat16_flops_per_s: float
    """The same in bfloat16."""

    def rate(self, arithmetic: Arithmetic) -> float:
        """Return the operations per second of a kind."""
        return self.bfloat16_flops_per_s if arithmetic == "bfloat16" else self.flops_per_s


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure the device's bandwidth and arithmetic rates."""
    gpu = device.type == "cuda"
    source = torch.randn(2**29 if gpu else 2**24, device=device)
    target = torch.empty_like(source)
    size, rounds = (8192, 9) if gpu else (512, 3)
    a, b = torch.randn((2, size, size), device=device)
    narrow_a, narrow_b = a.bfloat16(), b.bfloat16()
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        functions = [lambda: target.copy_(source), lambda: torch.mm(a, b), lambda: torch.mm(narrow_a, narrow_b)]
        copy, product, narrow = (median(times) for times in time_in_rounds(functions, device, rounds))
        torch.set_float32_matmul_precision("high")
        (tensor_times,) = time_in_rounds([lambda: torch.mm(a, b)], device, rounds)
    finally:
        torch.set_float32_matmul_precision(precision)
    flops = 2 * size**3
    return Ceilings(
        bytes_per_s=2 * source.nbytes / copy, flops_per_s=flops / product,
        tensor_flops_per_s=flops / median(tensor_times), bfloat16_flops_per_s=flops / narrow,
    )  # fmt: skip
