"""Images, weights and output gradients for the stem's tests."""

import torch
from tensors import LAST


def make_case(shape, out_channels, *, device="cpu", dtype=torch.float32, ternary=False, seed=0):
    """Return (x, weight, dy) in channels-last order.

    Args:
        shape: of x, (N, C, D, H, W).
        ternary: values -1, 0 and 1 only, so that every sum is exact in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    samples, channels, *extents = shape
    shapes = (shape, (out_channels, channels, 3, 3, 3), (samples, out_channels, *extents))

    def draw(size):
        if ternary:
            return torch.randint(-1, 2, size, generator=generator).to(torch.float64)
        return torch.randn(size, generator=generator, dtype=torch.float64)

    return [draw(size).to(device, dtype).contiguous(memory_format=LAST) for size in shapes]


def exact_convolution(x, weight, dy):
    """Return output and weight gradient in float64, on the CPU."""
    x, weight, dy = (tensor.detach().cpu().double() for tensor in (x, weight, dy))
    weight.requires_grad_()
    y = torch.nn.functional.conv3d(x, weight, padding=1)
    return y.detach(), torch.autograd.grad(y, weight, dy)[0]
