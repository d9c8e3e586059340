"""The stack as a PyTorch operator: autograd, ``torch.compile``, and the choice of the backward's path.

Both directions are custom operators, opaque to ``torch.compile``. The path is chosen whenever a backward
runs; under ``torch.compile`` that is when the graph is traced, so a later change of the switch or of the
environment has no effect on it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from scaffold.kernels.gated_stack import driver, plan, reference
from scaffold.kernels.gated_stack.layout import StackDims, dims_of
from scaffold.kernels.gated_stack.plan import Backward, DeviceKind, Path, Precision

_log = logging.getLogger(__name__)
_refusals_told: set[str] = set()


class InputGradient(NamedTuple):
    """What ``gated_stack_input_grad`` returns."""

    grad_u0: Tensor
    """(F, E, R)."""
    grad_scale: Tensor | None
    """(E, F), or None without a scale."""
    grad_z_all: Tensor | None
    """(N, F, E, R), if surfaces were to be kept."""
    grad_logits_all: Tensor | None
    """(N, F, E, G), if surfaces were to be kept."""


def gated_stack(
    u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None = None, *, lmax: int,
    backward: Backward = "auto", precision: Precision = "ieee",
) -> Tensor:  # fmt: skip
    """Run the gated mixing stack (``reference.forward`` gives the formulas).

    Args:
        u0: (F, E, R = (3 L + 1) C), float.
        w0: (N + 1, F, M0, M0), (in, out), with M0 = (L + 1) C.
        w1: (N + 1, F, M1, M1), with M1 = 2 L C.
        gw: (N, F, C, G), with G = L C.
        scale: (E, F), or None for 1. Its gradient divides by it, so it must not be 0 where that is asked for.
        lmax: L.
        backward: path of the backward; ``auto`` follows the environment variable ``plan.SWITCH``.
        precision: products of the kernels. ``tf32x3`` is the faster and, in the sizes measured, the more
            accurate, but a value within 0.05 % of the largest float32, or an infinity, becomes NaN.

    Returns:
        y, (E, F, R).

    Raises:
        TypeError: an argument is no tensor, or ``lmax`` no int.
        ValueError: shapes, dtypes or devices disagree, or a choice is unknown.
        plan.IneligibleError: in the backward, if the path demanded cannot serve it.
    """
    return gated_stack_forward(u0, w0, w1, gw, scale, lmax=lmax, backward=backward, precision=precision).y


def gated_stack_forward(
    u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None = None, *, lmax: int,
    backward: Backward = "auto", precision: Precision = "ieee",
) -> reference.Forward:  # fmt: skip
    """Like ``gated_stack``, returning also what the backward needs; all three outputs are differentiable.

    Under forward-mode differentiation the reference runs, whatever the device.
    """
    named = {"u0": u0, "w0": w0, "w1": w1, "gw": gw, "scale": scale}
    _check_types(named, lmax)
    dims = _check(tuple(u0.shape), named, lmax, backward, precision)
    if any(_has_tangent(tensor) for tensor in named.values()):
        # The operator has no rule for tangents, and PyTorch would drop them silently.
        return reference.forward(u0, w0, w1, gw, scale, dims)
    tensors = [tensor.contiguous() for tensor in (u0, w0, w1, gw)]
    packed_scale = None if scale is None else scale.contiguous()
    return reference.Forward(*_forward_op(*tensors, packed_scale, lmax, backward, precision))


def gated_stack_input_grad(
    grad_y: Tensor, y: Tensor, z_all: Tensor, scale: Tensor | None, w0: Tensor, w1: Tensor, gw: Tensor, *, lmax: int,
    backward: Backward = "auto", precision: Precision = "ieee", keep_surfaces: bool = False,
) -> InputGradient:  # fmt: skip
    """Backpropagate from y to u0, without autograd.

    Args:
        grad_y: (E, F, R).
        y: (E, F, R), the forward's output.
        z_all: (N, F, E, R), its pre-activations.
        scale: (E, F) or None.
        w0: as in the forward.
        w1: as in the forward.
        gw: as in the forward.
        lmax: L.
        backward: path; ``auto`` follows the switch.
        precision: products of the kernels.
        keep_surfaces: also return the gradients of the pre-activations and of the gate logits.

    Raises:
        TypeError: as ``gated_stack``.
        ValueError: as ``gated_stack``.
        plan.IneligibleError: the path demanded cannot serve the call.
    """
    tensors = {"y": y, "grad_y": grad_y, "z_all": z_all, "w0": w0, "w1": w1, "gw": gw, "scale": scale}
    _check_types(tensors, lmax)
    if y.dim() != 3 or w0.dim() != 4 or y.shape[1] != w0.shape[1]:
        raise ValueError(
            f"y has shape {tuple(y.shape)}; (E, F, R) is needed, edges first, with as many streams F as in w0,"
            f" (N + 1, F, M0, M0), of shape {tuple(w0.shape)}"
        )
    dims = _check((y.shape[1], y.shape[0], y.shape[2]), tensors, lmax, backward, precision)
    chosen = _plan(dims, y, backward, keeps_surfaces=keep_surfaces, grad_mode=False).path
    grad_y, y, z_all = grad_y.contiguous(), y.contiguous(), z_all.contiguous()
    scale = None if scale is None else scale.contiguous()
    grad_z_all: list[Tensor] = []
    grad_logits_all: list[Tensor] = []

    def keep(_layer: int, grad_z: Tensor, grad_logits: Tensor) -> None:
        grad_z_all.insert(0, grad_z.clone())
        grad_logits_all.insert(0, grad_logits.clone())

    with torch.no_grad():
        grad_u0 = _input_gradient(
            chosen, precision, dims, grad_y, z_all, scale, w0, w1, gw, None, None, keep if keep_surfaces else None
        )  # fmt: skip
        grad_scale = None if scale is None else _scale_gradient(chosen, grad_y, y, scale, dims)
    if not keep_surfaces:
        return InputGradient(grad_u0, grad_scale, None, None)
    shape = (dims.n_gated, dims.n_focus, dims.n_edge)
    return InputGradient(
        grad_u0, grad_scale,
        torch.stack(grad_z_all) if grad_z_all else grad_u0.new_empty((*shape, dims.row)),
        torch.stack(grad_logits_all) if grad_logits_all else grad_u0.new_empty((*shape, dims.gate_width)),
    )  # fmt: skip


def device_kind(tensor: Tensor) -> DeviceKind:
    """Say where kernels on ``tensor`` would run; imports no Triton."""
    if importlib.util.find_spec("triton") is None:
        return "cpu"
    if tensor.is_cuda:
        return "cuda"
    return "interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else "cpu"


@torch.library.custom_op("scaffold::gated_stack", mutates_args=())
def _forward_op(
    u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None, lmax: int, backward: str, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    dims = _dims(u0, w0, w1, gw, lmax)
    if plan.can_run_kernels(dims, _dtype_name(u0), device_kind(u0)):
        result = driver.forward(u0, w0, w1, gw, scale, dims, cast(Precision, precision))
    else:
        result = reference.forward(u0, w0, w1, gw, scale, dims)
    # An operator may not return its input.
    return result.y, result.z_all, result.u_last if dims.n_gated else u0.clone()


@_forward_op.register_fake
def _(
    u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None, lmax: int, backward: str, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    focus, edges, row = u0.shape
    return u0.new_empty((edges, focus, row)), u0.new_empty((gw.shape[0], focus, edges, row)), torch.empty_like(u0)


@torch.library.custom_op("scaffold::gated_stack_backward", mutates_args=())
def _backward_op(
    grad_y: Tensor, grad_z_all: Tensor | None, grad_u_last: Tensor | None, y: Tensor | None, z_all: Tensor,
    u0: Tensor, u_last: Tensor | None, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None,
    lmax: int, path: str, precision: str, needs_scale: bool, needs_weights: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of u0, then of the scale and of w0, w1, gw as far as needed."""
    dims = _dims(u0, w0, w1, gw, lmax)
    weights = None
    if needs_weights and u_last is not None:
        weights = reference.WeightGradients(u0, u_last, z_all, w0, w1, gw, dims)
        weights.last_layer(grad_y, scale)
    chosen = cast(Path, path)
    gradients = [
        _input_gradient(
            chosen, cast(Precision, precision), dims, grad_y, z_all, scale, w0, w1, gw, grad_z_all, grad_u_last,
            weights.gated_layer if weights else None,
        )
    ]  # fmt: skip
    if needs_scale and scale is not None and y is not None:
        gradients.append(_scale_gradient(chosen, grad_y, y, scale, dims))
    if weights:
        gradients.extend([weights.w0, weights.w1, weights.gw])
    return gradients


@_backward_op.register_fake
def _(
    grad_y: Tensor, grad_z_all: Tensor | None, grad_u_last: Tensor | None, y: Tensor | None, z_all: Tensor,
    u0: Tensor, u_last: Tensor | None, w0: Tensor, w1: Tensor, gw: Tensor, scale: Tensor | None,
    lmax: int, path: str, precision: str, needs_scale: bool, needs_weights: bool,
) -> list[Tensor]:  # fmt: skip
    like = [u0]
    if needs_scale and scale is not None:
        like.append(scale)
    if needs_weights:
        like.extend([w0, w1, gw])
    return [torch.empty_like(tensor) for tensor in like]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u0, w0, w1, gw, scale, ctx.lmax, ctx.backward, ctx.precision = inputs
    y, z_all, u_last = output
    ctx.needs_scale = scale is not None and ctx.needs_input_grad[4]
    ctx.needs_weights = any(ctx.needs_input_grad[1:4])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        u0, w0, w1, gw, scale, y if ctx.needs_scale else None, z_all, u_last if ctx.needs_weights else None
    )


def _backward(
    ctx: Any, grad_y: Tensor | None, grad_z_all: Tensor | None, grad_u_last: Tensor | None
) -> tuple[Tensor | None, ...]:
    u0, w0, w1, gw, scale, y, z_all, u_last = ctx.saved_tensors
    dims = _dims(u0, w0, w1, gw, ctx.lmax)
    if grad_y is None:
        grad_y = u0.new_zeros((dims.n_edge, dims.n_focus, dims.row))
    grad_mode = torch.is_grad_enabled()
    chosen = _plan(
        dims, u0, ctx.backward, needs_weight_grad=ctx.needs_weights, grad_mode=grad_mode,
        has_cotangent=grad_z_all is not None or grad_u_last is not None,
    )  # fmt: skip
    if grad_mode:
        return _differentiable_gradients(ctx, dims, (u0, w0, w1, gw, scale), (grad_y, grad_z_all, grad_u_last))
    gradients = _backward_op(
        grad_y.contiguous(), grad_z_all, grad_u_last, y, z_all, u0, u_last, w0, w1, gw, scale,
        ctx.lmax, chosen.path, ctx.precision, ctx.needs_scale, ctx.needs_weights,
    )  # fmt: skip
    grad_u0, *rest = gradients
    grad_scale = rest.pop(0) if ctx.needs_scale else None
    grad_weights = rest if ctx.needs_weights else [None, None, None]
    return grad_u0, *grad_weights, grad_scale, None, None, None


_forward_op.register_autograd(_backward, setup_context=_setup_context)


def _differentiable_gradients(
    ctx: Any, dims: StackDims, inputs: tuple[Tensor | None, ...], cotangents: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients through the reference, as a graph that can be differentiated again."""
    # Aliases: an input may derive from another, and differentiating the saved tensors themselves would go
    # on through their own history, which the engine that called us adds once more.
    inputs = tuple(None if tensor is None else tensor.view_as(tensor) for tensor in inputs)
    u0, w0, w1, gw, scale = inputs
    outputs = reference.forward(cast(Tensor, u0), cast(Tensor, w0), cast(Tensor, w1), cast(Tensor, gw), scale, dims)
    pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if c is not None and o.requires_grad]
    wanted = {i: tensor for i, tensor in enumerate(inputs) if tensor is not None and ctx.needs_input_grad[i]}
    found = torch.autograd.grad(
        [o for o, _ in pairs], list(wanted.values()), [c for _, c in pairs], create_graph=True, allow_unused=True
    )  # fmt: skip
    gradients: list[Tensor | None] = [None] * 8
    for i, gradient in zip(wanted, found, strict=True):
        gradients[i] = gradient
    return tuple(gradients)


def _input_gradient(
    path: Path, precision: Precision, dims: StackDims, grad_y: Tensor, z_all: Tensor, scale: Tensor | None,
    w0: Tensor, w1: Tensor, gw: Tensor, z_cotangent: Tensor | None, u_cotangent: Tensor | None,
    sink: driver.LayerSink | None,
) -> Tensor:  # fmt: skip
    if path != "eager":
        walk = driver.Backward(scale, w0, w1, gw, dims, precision)
        return walk.run(path, grad_y, z_all, z_cotangent, u_cotangent, sink)
    # The head sums in edge-major order; what is promised to the compiler is u0's own.
    g = reference.head_gradient(grad_y, w0[-1], w1[-1], scale, dims).contiguous()
    if u_cotangent is not None:
        g = g + u_cotangent
    for layer in reversed(range(dims.n_gated)):
        cotangent = None if z_cotangent is None else z_cotangent[layer]
        step = reference.layer_gradient(g, z_all[layer], w0[layer], w1[layer], gw[layer], dims, cotangent)
        if sink:
            sink(layer, step.grad_z, step.grad_logits)
        g = step.grad_u
    return g


def _scale_gradient(path: Path, grad_y: Tensor, y: Tensor, scale: Tensor, dims: StackDims) -> Tensor:
    if path == "eager":
        return (grad_y * y).sum(-1) / scale
    return driver.scale_gradient(grad_y, y, scale, dims)


def _plan(dims: StackDims, tensor: Tensor, backward: str, **request: bool) -> plan.BackwardPlan:
    switch = backward == "auto" and plan.switch_is_on()
    chosen = plan.plan_backward(
        plan.Request(dims, _dtype_name(tensor), device_kind(tensor), **request), cast(Backward, backward), switch
    )
    if backward == "auto" and switch and not chosen.eligible and chosen.reason not in _refusals_told:
        _refusals_told.add(chosen.reason)
        _log.info("%s is on, but %s: taking the %s path", plan.SWITCH, plan.REASONS[chosen.reason], chosen.path)
    return chosen


def _has_tangent(tensor: Tensor | None) -> bool:
    return tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _check_types(tensors: dict[str, Tensor | None], lmax: int) -> None:
    if not isinstance(lmax, int) or isinstance(lmax, bool):
        raise TypeError(f"lmax is {lmax!r}; an int is needed")
    for name, tensor in tensors.items():
        if not (isinstance(tensor, Tensor) or (tensor is None and name == "scale")):
            raise TypeError(f"{name} is {tensor!r}; a tensor is needed")


def _check(
    u_shape: tuple[int, ...], tensors: dict[str, Tensor | None], lmax: int, backward: str, precision: str
) -> StackDims:
    plan.check_choice("backward", backward, Backward)
    plan.check_choice("precision", precision, Precision)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    dims = dims_of(u_shape, shapes["w0"], shapes["w1"], shapes["gw"], lmax)
    output = (dims.n_edge, dims.n_focus, dims.row)
    needed = {"scale": output[:2], "y": output, "grad_y": output, "z_all": (dims.n_gated, *u_shape)}
    for name, shape in shapes.items():
        if shape != needed.get(name, shape):
            raise ValueError(f"{name} has shape {shape}; {needed[name]} is needed")
    w0 = cast(Tensor, tensors["w0"])
    if not w0.dtype.is_floating_point:
        raise ValueError(f"w0 is {w0.dtype}; a real floating-point type is needed")
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.dtype, tensor.device) != (w0.dtype, w0.device):
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}; {w0.dtype} on {w0.device} is needed, like w0"
            )
    return dims


def _dims(u0: Tensor, w0: Tensor, w1: Tensor, gw: Tensor, lmax: int) -> StackDims:
    return dims_of(tuple(u0.shape), tuple(w0.shape), tuple(w1.shape), tuple(gw.shape), lmax)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
