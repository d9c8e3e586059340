"""Host side of the kernels: what is launched, in which order, on which buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.packing import pack
from scaffold.kernels.gated_stack.plan import K_TILE, Path, Precision, tile_for
from scaffold.kernels.gated_stack.reference import Forward

LayerSink = Callable[[int, Tensor, Tensor], None]
"""Receives (layer, gradient of z (F, E, R), gradient of the logits (F, E, G)), last layer first; it must use
them before it returns, since the buffers are used again."""

_recorders: list[list[str]] = []


@contextlib.contextmanager
def record_launches() -> Iterator[list[str]]:
    """Collect the names of the kernels launched within the block, in order."""
    names: list[str] = []
    _recorders.append(names)
    try:
        yield names
    finally:
        _recorders.remove(names)


class Launcher:
    """Launches kernels for one call: fixed sizes, precision and device.

    Args:
        dims: the sizes.
        precision: of the products.
        device: of the tensors.
    """

    def __init__(self, dims: StackDims, precision: Precision, device: torch.device) -> None:
        self.dims, self.precision, self.device = dims, precision, device

    def __call__(self, name: str, *arguments: Any, **constants: Any) -> None:
        """Launch kernel ``name`` over all rows and focus streams."""
        kernel, grid, options = self.specify(name, **constants)
        if self.dims.n_edge == 0:
            return
        for names in _recorders:
            names.append(name)
        guard = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with guard:
            kernel[grid](*arguments, **options)

    def specify(self, name: str, **constants: Any) -> tuple[Any, tuple[int, int], dict[str, Any]]:
        """Return kernel ``name``, its grid, and its compile-time arguments and launch options."""
        from scaffold.kernels.gated_stack import kernels

        dims, tile = self.dims, tile_for(name, self.dims, self.precision)
        kernel = getattr(kernels, f"{name}_kernel")
        known = {
            "L": dims.lmax, "C": dims.channels, "PRECISION": self.precision, "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n, "BLOCK_K": K_TILE, "BLOCK_G": min(dims.channels, 2 * K_TILE),
        }  # fmt: skip
        constants |= {key: value for key, value in known.items() if key in kernel.arg_names}
        programs = -(-dims.n_edge // tile.block_m)
        if name == "gemm":
            programs *= -(-dims.m0 // tile.block_n) + -(-dims.m1 // tile.block_n)
        elif name == "tiled":
            programs *= -(-(dims.m1 if constants["PART"] else dims.m0) // tile.block_n)
        # Contraction of a product and a sum is written where it is meant; the compiler may add none.
        options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": False}
        return kernel, (programs, dims.n_focus), constants | options


def forward(
    u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None, dims: StackDims, precision: Precision
) -> Forward:
    """Run the stack with the kernels; shapes as in ``reference.forward``."""
    launch = Launcher(dims, precision, u0.device)
    packed0, packed1 = pack(w0, K_TILE, precision), pack(w1, K_TILE, precision)
    gates = pack(gw, dims.channels, precision)
    z_all = u0.new_empty((dims.n_gated, *u0.shape))
    u = u0
    for layer in range(dims.n_gated):
        out = torch.empty_like(u0)
        launch("forward_scalar", u, packed0[layer], gates[layer], z_all[layer], out, dims.n_edge)
        launch("forward_vector", u, packed1[layer], z_all[layer], out, dims.n_edge)
        u = out
    y = u0.new_empty((dims.n_edge, dims.n_focus, dims.row))
    launch(
        "gemm", u, u, scale, packed0[-1], packed1[-1], y, dims.n_edge, dims.n_focus,
        A_EDGE_MAJOR=False, OUT_EDGE_MAJOR=True, HAS_SCALE=scale is not None,
    )  # fmt: skip
    return Forward(y, z_all, u)


class Backward:
    """Gradient of the stack's input with the kernels.

    Args:
        scale: (E, F) or None.
        w0: (N + 1, F, M0, M0).
        w1: (N + 1, F, M1, M1).
        gw: (N, F, C, G).
        dims: the sizes.
        precision: of the products.
    """

    def __init__(
        self, scale: Tensor | None, w0: Tensor, w1: Tensor, gw: Tensor, dims: StackDims, precision: Precision
    ) -> None:
        self.scale, self.dims = scale, dims
        self.launch = Launcher(dims, precision, w0.device)
        self.w0t = pack(w0.transpose(-1, -2), K_TILE, precision)
        self.w1t = pack(w1.transpose(-1, -2), K_TILE, precision)
        self.gate = pack(gw, dims.channels, precision)
        self.gate_t = pack(gw.transpose(-1, -2), K_TILE, precision)

    def run(
        self, path: Path, grad_y: Tensor, z_all: Tensor,
        z_cotangent: Tensor | None = None, u_cotangent: Tensor | None = None, sink: LayerSink | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the gradient of u0, (F, E, R).

        Args:
            path: ``relay``, ``fused`` or ``panel``.
            grad_y: (E, F, R).
            z_all: (N, F, E, R).
            z_cotangent: a gradient of z_all, to be added; relay only.
            u_cotangent: a gradient of the last layer's input, to be added.
            sink: receives what the weight gradients need; relay only.
        """
        grad = self.head(grad_y)
        if u_cotangent is not None:
            grad += u_cotangent
        if self.dims.n_gated == 0:
            return grad
        layer_gradient = {"relay": self._relay_of(sink, z_cotangent), "fused": self.fused, "panel": self.panel}[path]
        spare = torch.empty_like(grad)
        for layer in reversed(range(self.dims.n_gated)):
            layer_gradient(layer, grad, z_all[layer], spare)
            grad, spare = spare, grad
        return grad

    def head(self, grad_y: Tensor) -> Tensor:
        """Return the gradient of the last layer's input, (F, E, R), from (E, F, R)."""
        dims = self.dims
        grad = grad_y.new_empty((dims.n_focus, dims.n_edge, dims.row))
        self.launch(
            "gemm", grad_y, grad_y, self.scale, self.w0t[-1], self.w1t[-1], grad, dims.n_edge, dims.n_focus,
            A_EDGE_MAJOR=True, OUT_EDGE_MAJOR=False, HAS_SCALE=self.scale is not None,
        )  # fmt: skip
        return grad

    def relay(
        self, layer: int, grad: Tensor, z: Tensor, out: Tensor, gates: Tensor, grad_z: Tensor,
        grad_logits: Tensor | None = None, cotangent: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Backpropagate through one gated layer with three kernels.

        Args:
            layer: its number.
            grad: (F, E, R), gradient of its output.
            z: (F, E, R).
            out: (F, E, R), receives the gradient of its input.
            gates: (F, E, G), surface for the gates.
            grad_z: (F, E, R), surface for the gradient of z.
            grad_logits: (F, E, G), receives the gradient of the logits.
            cotangent: (F, E, R), added to the gradient of z.
        """
        dims, n_edge = self.dims, self.dims.n_edge
        self.launch("gate", z, self.gate[layer], gates, n_edge)
        self.launch(
            "pointwise", grad, z, gates, self.gate_t[layer], grad_z, grad_logits, n_edge,
            KEEP_LOGITS=grad_logits is not None,
        )  # fmt: skip
        if cotangent is not None:
            grad_z += cotangent
        self.launch(
            "gemm", grad_z, grad, None, self.w0t[layer], self.w1t[layer], out, n_edge, dims.n_focus,
            A_EDGE_MAJOR=False, OUT_EDGE_MAJOR=False, HAS_SCALE=False,
        )  # fmt: skip

    def fused(self, layer: int, grad: Tensor, z: Tensor, out: Tensor) -> None:
        """Backpropagate through one gated layer with the tiled kernel, once for each block."""
        for part, weight in ((0, self.w0t), (1, self.w1t)):
            self.launch(
                "tiled", grad, z, weight[layer], self.gate[layer], self.gate_t[layer], out, self.dims.n_edge, PART=part
            )

    def panel(self, layer: int, grad: Tensor, z: Tensor, out: Tensor) -> None:
        """Backpropagate through one gated layer with the panel kernels, block m = 0 first."""
        gate, gate_t, n_edge = self.gate[layer], self.gate_t[layer], self.dims.n_edge
        self.launch("panel_scalar", grad, z, self.w0t[layer], gate, gate_t, out, n_edge)
        self.launch("panel_vector", grad, self.w1t[layer], out, n_edge)

    def _relay_of(
        self, sink: LayerSink | None, cotangent: Tensor | None
    ) -> Callable[[int, Tensor, Tensor, Tensor], None]:
        surfaces: list[Tensor] = []

        def run(layer: int, grad: Tensor, z: Tensor, out: Tensor) -> None:
            if not surfaces:
                gates = grad.new_empty((*grad.shape[:2], self.dims.gate_width))
                surfaces.extend([gates, torch.empty_like(grad)])
            gates, grad_z = surfaces
            grad_logits = torch.empty_like(gates) if sink else None
            own = None if cotangent is None else cotangent[layer]
            self.relay(layer, grad, z, out, gates, grad_z, grad_logits, own)
            if sink and grad_logits is not None:
                sink(layer, grad_z, grad_logits)

        return run


def scale_gradient(grad_y: Tensor, y: Tensor, scale: Tensor, dims: StackDims) -> Tensor:
    """Return the gradient of the output scale, (E, F), without a temporary surface."""
    from scaffold.kernels.gated_stack import kernels

    grad_scale = torch.empty_like(scale)
    n_rows = dims.n_edge * dims.n_focus
    if n_rows == 0:
        return grad_scale
    for names in _recorders:
        names.append("scale_gradient")
    block_r = 1 << (dims.row - 1).bit_length()
    guard = torch.cuda.device(y.device) if y.device.type == "cuda" else contextlib.nullcontext()
    with guard:
        kernels.scale_gradient_kernel[(-(-n_rows // 8),)](
            grad_y, y, scale, grad_scale, n_rows, R=dims.row, BLOCK_M=8, BLOCK_R=block_r, num_warps=4
        )
    return grad_scale
