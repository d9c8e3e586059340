"""One gated layer's backward on the test's device, by each path, into poisoned buffers with canaries."""

import torch
from stack_cases import make_stack

from scaffold.kernels.gated_stack import driver, reference
from scaffold.kernels.gated_stack.layout import StackDims

CANARY = -7.25


class LayerCase:
    """A layer with random inputs; ``run`` backpropagates through it.

    Args:
        lmax, channels, n_focus, n_edge: sizes.
        hard: scalars up to +-50, so that gates saturate.
        precision: of the products.
    """

    def __init__(self, lmax, channels, n_focus, n_edge, *, device, precision="ieee", hard=False, seed=0):
        self.dims = StackDims(n_focus, n_edge, lmax, channels, 1)
        self.device, self.precision = device, precision
        self.stack = make_stack(self.dims, scale=False, device=device, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1)
        shape = (n_focus, n_edge, self.dims.row)
        self.grad = torch.randn(shape, generator=generator).to(device)
        self.z = torch.randn(shape, generator=generator).to(device)
        if hard:
            self.z[..., :channels] *= 50 / self.z[..., :channels].abs().max()

    def run(self, path):
        """Return the gradient of the layer's input, (F, E, R); checks that nothing past it was written."""
        with poisoned(self.grad.shape, self.device) as out:
            walk = driver.Backward(
                None, self.stack["w0"], self.stack["w1"], self.stack["gw"], self.dims, self.precision
            )
            if path == "relay":
                gate_shape = (*self.grad.shape[:2], self.dims.gate_width)
                with poisoned(gate_shape, self.device) as gates, poisoned(self.grad.shape, self.device) as grad_z:
                    walk.relay(0, self.grad, self.z, out, gates, grad_z)
            else:
                getattr(walk, path)(0, self.grad, self.z, out)
        return out

    def exact(self):
        """The same in float64."""
        weights = [self.stack[name][0].double() for name in ("w0", "w1", "gw")]
        return reference.layer_gradient(self.grad.double(), self.z.double(), *weights, self.dims).grad_u


class poisoned:  # noqa: N801 - reads as a verb
    """A tensor full of NaN in the middle of a larger one, whose rest must not change."""

    def __init__(self, shape, device, margin=4096):
        size = int(torch.Size(shape).numel())
        self.whole = torch.full((size + 2 * margin,), CANARY, device=device)
        self.tensor = self.whole[margin : margin + size].view(shape).fill_(float("nan"))
        self.margin = margin

    def __enter__(self):
        return self.tensor

    def __exit__(self, *_):
        assert (self.whole[: self.margin] == CANARY).all(), "a kernel wrote before its output"
        assert (self.whole[-self.margin :] == CANARY).all(), "a kernel wrote past its output"
