"""Workload ``gated_stack_forward``: one gated layer, returning pre-activations and output."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scaffold.kernels.bench import Arm, Case, Recipe, Sizes
from scaffold.kernels.gated_stack import driver, model, packing, reference
from scaffold.kernels.gated_stack.bench_cases import SIZES, Layer, compiled_arms, rms_error, spills
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import K_TILE, Precision

_PRECISIONS: tuple[Precision, ...] = ("ieee", "tf32x3")


def recipes(device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the cases of ``SIZES``; on a CPU only the eager arm."""
    return [
        partial(_case, StackDims(focus, edges, lmax, channels, 1), device)
        for lmax, channels, focus, edges in SIZES[sizes]
    ]


def _case(dims: StackDims, device: torch.device) -> Case:
    layer = Layer(dims, device)

    def plain(u: Tensor, w0: Tensor, w1: Tensor, gw: Tensor) -> tuple[Tensor, Tensor]:
        z = reference.mix(u, w0, w1, dims)
        return z, u + reference.activation(z, gw, dims)

    operands = (layer.rows, *layer.weights)
    arms = [Arm("eager", lambda: plain(*operands)[1])]
    if device.type == "cuda":
        arms = [_kernel_arm(layer, precision) for precision in _PRECISIONS] + arms
        arms += compiled_arms(lambda *tensors: plain(*tensors), operands, lambda pair: pair[1])
    exact = plain(layer.rows[:, : layer.checked].double(), *[weight.double() for weight in layer.weights])[1]
    return Case(layer.name, model.forward_minimum(dims), arms, lambda found: rms_error(found, exact), arms[0].name)


def _kernel_arm(layer: Layer, precision: Precision) -> Arm:
    dims, (w0, w1, gw) = layer.dims, layer.weights
    launch = driver.Launcher(dims, precision, layer.rows.device)
    packed0, packed1 = packing.pack(w0[None], K_TILE, precision)[0], packing.pack(w1[None], K_TILE, precision)[0]
    gate = packing.pack(gw[None], dims.channels, precision)[0]
    z, out = torch.empty_like(layer.rows), torch.empty_like(layer.rows)

    def run() -> Tensor:
        launch("forward_scalar", layer.rows, packed0, gate, z, out, dims.n_edge)
        launch("forward_vector", layer.rows, packed1, z, out, dims.n_edge)
        return out

    name = "triton" if precision == "ieee" else f"triton-{precision}"
    return Arm(name, run, precision, registers=partial(spills, "forward", dims, precision), compiles=True)
