"""Workload ``gated_stack_backward``: the backward of one gated layer, without the head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scaffold.kernels.bench import Arm, Case, Recipe, Sizes
from scaffold.kernels.gated_stack import driver, model, reference
from scaffold.kernels.gated_stack.bench_cases import SIZES, Layer, compiled_arms, rms_error, spills
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Path, Precision

_PRECISIONS: tuple[Precision, ...] = ("ieee", "tf32x3")


def recipes(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the cases of ``SIZES``; on a CPU only the eager arm."""
    return [
        partial(_case, StackDims(focus, edges, lmax, channels, 1), device)
        for lmax, channels, focus, edges in SIZES[sizes]
    ]


def _case(dims: StackDims, device: torch.device) -> Case:
    layer = Layer(dims, device)
    z = torch.randn_like(layer.rows)

    def plain(g: Tensor, z: Tensor, w0: Tensor, w1: Tensor, gw: Tensor) -> Tensor:
        return reference.layer_gradient(g, z, w0, w1, gw, dims).grad_u

    operands = (layer.rows, z, *layer.weights)
    arms = [Arm("eager", lambda: plain(*operands))]
    if device.type == "cuda":
        arms = [arm for precision in _PRECISIONS for arm in _kernel_arms(layer, z, precision)] + arms
        arms += compiled_arms(plain, operands)
    head = [operand[:, : layer.checked] for operand in operands[:2]]
    exact = plain(*[tensor.double() for tensor in (*head, *layer.weights)])
    return Case(layer.name, model.minimum(dims), arms, lambda found: rms_error(found, exact), arms[0].name)


def _kernel_arms(layer: Layer, z: Tensor, precision: Precision) -> list[Arm]:
    dims = layer.dims
    w0, w1, gw = layer.weights
    # The gated layer, and as the last one the same weights again, for the head of the footprint.
    walk = driver.Backward(None, torch.stack([w0, w0]), torch.stack([w1, w1]), gw[None], dims, precision)
    out, grad_z = torch.empty_like(z), torch.empty_like(z)
    gates = z.new_empty((dims.n_focus, dims.n_edge, dims.gate_width))
    grad_y, z_all = torch.randn((dims.n_edge, dims.n_focus, dims.row), device=z.device), z[None]

    def relay() -> Tensor:
        walk.relay(0, layer.rows, z, out, gates, grad_z)
        return out

    def fused() -> Tensor:
        walk.fused(0, layer.rows, z, out)
        return out

    def panel() -> Tensor:
        walk.panel(0, layer.rows, z, out)
        return out

    runs: dict[Path, Callable[[], Tensor]] = {"relay": relay, "fused": fused, "panel": panel}
    return [
        Arm(
            path if precision == "ieee" else f"{path}-{precision}", run, precision, model.modelled(path, dims),
            partial(walk.run, path, grad_y, z_all), partial(spills, path, dims, precision), compiles=True,
        )
        for path, run in runs.items()
    ]  # fmt: skip
