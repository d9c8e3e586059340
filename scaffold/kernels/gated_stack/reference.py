"""The gated mixing stack in plain PyTorch: any float dtype, differentiable to any order.

The formulas, for one focus and one row, with p the gates and t the logistic function of s::

    gated layer   z = [u[:M0] W0, u[M0:] W1]      s = z[:C]      p = sigma(s Gw)
                  u <- u + [s sigma(s), z[C:] [p, p, p]]
    last layer    y = alpha (u + [u[:M0] W0, u[M0:] W1])

``layer_gradient`` and ``head_gradient`` are the hand-derived gradients that the kernels implement; the
tests compare them with what autograd derives from ``forward``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scaffold.kernels.gated_stack.layout import StackDims


class Forward(NamedTuple):
    """What a forward pass returns."""

    y: Tensor
    """(E, F, R)."""
    z_all: Tensor
    """(N, F, E, R), raw pre-activations of the gated layers."""
    u_last: Tensor
    """(F, E, R), input of the last layer."""


class LayerGradient(NamedTuple):
    """Gradients of one gated layer."""

    grad_u: Tensor
    """(F, E, R), gradient of the layer's input."""
    grad_z: Tensor
    """(F, E, R), gradient of its pre-activations."""
    grad_logits: Tensor
    """(F, E, G), gradient of its gate logits s Gw."""


def forward(u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None, dims: StackDims) -> Forward:
    """Run the stack.

    Args:
        u0: (F, E, R).
        w0: (N + 1, F, M0, M0), (in, out).
        w1: (N + 1, F, M1, M1).
        gw: (N, F, C, G).
        scale: (E, F), or None for 1.
        dims: the sizes.
    """
    u, z_all = u0, []
    for layer in range(dims.n_gated):
        z = mix(u, w0[layer], w1[layer], dims)
        z_all.append(z)
        u = u + activation(z, gw[layer], dims)
    y = (u + mix(u, w0[-1], w1[-1], dims)).transpose(0, 1)
    if scale is not None:
        y = y * scale[..., None]
    saved = torch.stack(z_all) if z_all else u0.new_empty((0, *u0.shape))
    return Forward(y.contiguous(), saved, u)


def mix(u: Tensor, w0: Tensor, w1: Tensor, dims: StackDims) -> Tensor:
    """Return [u[:M0] W0, u[M0:] W1], (F, E, R), for one layer's weights (F, M, M)."""
    return torch.cat([u[..., : dims.m0] @ w0, u[..., dims.m0 :] @ w1], dim=-1)


def activation(z: Tensor, gw: Tensor, dims: StackDims) -> Tensor:
    """Return [s sigma(s), z[C:] [p, p, p]], (F, E, R), for one layer's gate projection (F, C, G)."""
    s = z[..., : dims.channels]
    p = torch.sigmoid(s @ gw)
    return torch.cat([s * torch.sigmoid(s), z[..., dims.channels :] * p.repeat(1, 1, 3)], dim=-1)


def layer_gradient(
    g: Tensor, z: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, dims: StackDims, cotangent: Tensor | None = None
) -> LayerGradient:
    """Backpropagate through one gated layer.

    Args:
        g: (F, E, R), gradient of the layer's output.
        z: (F, E, R), its raw pre-activations.
        w0: (F, M0, M0).
        w1: (F, M1, M1).
        gw: (F, C, G).
        dims: the sizes.
        cotangent: (F, E, R), a gradient that z has of its own.
    """
    c, width = dims.channels, dims.gate_width
    s = z[..., :c]
    p, t = torch.sigmoid(s @ gw), torch.sigmoid(s)
    h = g[..., c:] * z[..., c:]
    grad_p = h[..., :width] + h[..., width : 2 * width] + h[..., 2 * width :]
    grad_logits = grad_p * p * (1 - p)
    grad_s = g[..., :c] * t * (1 + s * (1 - t)) + grad_logits @ gw.transpose(-1, -2)
    grad_z = torch.cat([grad_s, g[..., c:] * p.repeat(1, 1, 3)], dim=-1)
    if cotangent is not None:
        grad_z = grad_z + cotangent
    return LayerGradient(g + transposed_mix(grad_z, w0, w1, dims), grad_z, grad_logits)


def head_gradient(grad_y: Tensor, w0: Tensor, w1: Tensor, scale: Tensor | None, dims: StackDims) -> Tensor:
    """Backpropagate through the last layer: the gradient of its input, (F, E, R), from (E, F, R)."""
    scaled = grad_y if scale is None else grad_y * scale[..., None]
    g = scaled.transpose(0, 1)
    return g + transposed_mix(g, w0, w1, dims)


def transposed_mix(g: Tensor, w0: Tensor, w1: Tensor, dims: StackDims) -> Tensor:
    """Return [g[:M0] W0^T, g[M0:] W1^T], (F, E, R)."""
    return mix(g, w0.transpose(-1, -2), w1.transpose(-1, -2), dims)


class WeightGradients:
    """Gathers the gradients of the weights while a backward walks the layers, last first.

    The inputs of the gated layers are not saved; they are walked back, u_l = u_{l+1} - a(z_l), except for
    the first layer, whose input is at hand.

    Args:
        u0: (F, E, R).
        u_last: (F, E, R), input of the last layer.
        z_all: (N, F, E, R).
        w0: (N + 1, F, M0, M0), for its shape.
        w1: (N + 1, F, M1, M1), for its shape.
        gw: (N, F, C, G).
        dims: the sizes.
    """

    def __init__(
        self, u0: Tensor, u_last: Tensor, z_all: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, dims: StackDims
    ) -> None:
        self.w0, self.w1, self.gw = torch.empty_like(w0), torch.empty_like(w1), torch.empty_like(gw)
        self._u0, self._u, self._z_all, self._gates, self._dims = u0, u_last, z_all, gw, dims

    def last_layer(self, grad_y: Tensor, scale: Tensor | None) -> None:
        """Add the last layer, from the output's gradient (E, F, R)."""
        scaled = grad_y if scale is None else grad_y * scale[..., None]
        self._add(self._dims.n_gated, scaled.transpose(0, 1))

    def gated_layer(self, layer: int, grad_z: Tensor, grad_logits: Tensor) -> None:
        """Add a gated layer, from the gradients of z (F, E, R) and of the logits (F, E, G)."""
        z, dims = self._z_all[layer], self._dims
        self._u = self._u - activation(z, self._gates[layer], dims) if layer else self._u0
        self._add(layer, grad_z)
        self.gw[layer] = z[..., : dims.channels].transpose(-1, -2) @ grad_logits

    def _add(self, layer: int, grad: Tensor) -> None:
        m0, u = self._dims.m0, self._u.transpose(-1, -2)
        self.w0[layer] = u[:, :m0] @ grad[..., :m0]
        self.w1[layer] = u[:, m0:] @ grad[..., m0:]
