"""Inputs of the step up, and its gradients by any implementation."""

import contextlib
from dataclasses import dataclass, field

import torch
from tensors import LAST, poisoned_memory

from scaffold.kernels.convolution import upsample

NAMES = ("out", "x", "weight", "bias", "skip")


@dataclass
class Case:
    """A call in channels-last order; ``exact`` draws from {-1, 0, 1}, so that every sum is an integer."""

    channels: int
    coarse: tuple
    odd: tuple = (0, 0, 0)
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    exact: bool = True
    zeros: float = 1 / 3
    tensors: dict = field(init=False)

    def __post_init__(self):
        """Draw the tensors."""
        torch.manual_seed(0)
        C, N = self.channels, self.batch
        fine = tuple(2 * extent + more for extent, more in zip(self.coarse, self.odd, strict=True))
        shapes = {
            "x": (N, 2 * C, *self.coarse), "weight": (2 * C, C, 2, 2, 2), "bias": (C,), "skip": (N, C, *fine),
            "grad": (N, 2 * C, *fine),
        }  # fmt: skip
        self.tensors = {name: self.draw(shape).to(self.dtype) for name, shape in shapes.items()}
        for name in ("x", "weight", "skip", "grad"):
            self.tensors[name] = self.tensors[name].contiguous(memory_format=LAST)

    def draw(self, shape):
        """Return random values in float32."""
        if not self.exact:
            return torch.randn(shape, device=self.device)
        kept = torch.rand(shape, device=self.device) >= self.zeros
        return torch.where(kept, torch.randint(0, 2, shape, device=self.device).float() * 2 - 1, 0.0)

    def run(self, function=upsample.triton, dtype=None, **changed):
        """Return {name: output or gradient}, computed in ``dtype`` if given."""
        tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in (self.tensors | changed).items()}
        grad = tensors.pop("grad")
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        with poisoned_memory() if function is upsample.triton else contextlib.nullcontext():
            out = function(**leaves)
            gradients = torch.autograd.grad(out, list(leaves.values()), grad)
        return dict(zip(NAMES, (out, *gradients), strict=True))


def same_values(found, wanted):
    """Whether results agree in every value, with the dtypes of ``found``."""
    return all(torch.equal(found[name], wanted[name].to(found[name].dtype)) for name in NAMES)


def worst_error(found, wanted):
    """Return the greatest deviation, relative to the largest value, of any result."""
    return max(((found[name].double() - wanted[name]).abs().max() / wanted[name].abs().max()).item() for name in NAMES)
