"""Inputs for the kernels of the pointwise convolution."""

import torch
import torch.nn.functional as F
from tensors import LAST


def make_case(device, inputs=64, outputs=6, dtype=torch.float32, shape=(5, 6, 7), samples=2, exact=False, seed=0):
    """Return x, weight, bias and a gradient of the output; ``exact``: of -1, 0 and 1, so that no sum is rounded."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        values = torch.randn(size, generator=generator)
        return (values.round().clamp(-1, 1) if exact else values).to(device, dtype)

    x = draw(samples, inputs, *shape).contiguous(memory_format=LAST)
    gradient = draw(samples, outputs, *shape).contiguous(memory_format=LAST)
    return x, draw(outputs, inputs, 1, 1, 1), draw(outputs), gradient


def run(function, x, weight, bias, gradient):
    """Return the output and the gradients of x, weight and bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype))


def exact_run(x, weight, bias, gradient):
    """Return the same in float64."""
    return run(F.conv3d, x.double(), weight.double(), bias.double(), gradient.double())
