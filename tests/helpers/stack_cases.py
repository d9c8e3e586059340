"""Random stacks for the tests of the gated stack."""

import torch


def make_stack(dims, *, scale=True, dtype=torch.float32, device="cpu", requires="", seed=0):
    """Return {name: tensor} for u0, w0, w1, gw and, if asked for, scale; ``requires`` names those with gradients."""
    generator = torch.Generator().manual_seed(seed)
    focus, layers = dims.n_focus, dims.n_gated
    shapes = {
        "u0": (focus, dims.n_edge, dims.row),
        "w0": (layers + 1, focus, dims.m0, dims.m0),
        "w1": (layers + 1, focus, dims.m1, dims.m1),
        "gw": (layers, focus, dims.channels, dims.gate_width),
    }
    stack = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    for name, fan_in in (("w0", dims.m0), ("w1", dims.m1), ("gw", dims.channels)):
        stack[name] /= fan_in**0.5
    if scale:
        stack["scale"] = torch.rand((dims.n_edge, focus), generator=generator, dtype=torch.float64) + 0.1
    stack = {name: tensor.to(device, dtype) for name, tensor in stack.items()}
    for name in requires.split():
        stack[name].requires_grad_()
    return stack


def random_like_output(dims, *, device="cpu", dtype=torch.float32, seed=1):
    """Return a gradient of y, (E, F, R)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (dims.n_edge, dims.n_focus, dims.row)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
