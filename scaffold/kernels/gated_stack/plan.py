"""Which backward runs, and with which tiles: pure functions, importable without Triton or a GPU.

The backward has four paths:

* ``eager``: the formulas of ``reference.py``; any dtype, width, device and order of derivative.
* ``relay``: three Triton kernels a layer (gates, pointwise, GEMM) with two surfaces in memory between them.
* ``fused``: one tiled Triton kernel for each of the two blocks of columns; no surface in memory.
* ``panel``: like ``fused``, but a program owns all columns of its rows, so that nothing is computed twice.

``fused`` and ``panel`` give the relay's bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from scaffold.errors import UserError
from scaffold.kernels.gated_stack.layout import StackDims

Path = Literal["eager", "relay", "fused", "panel"]
Backward = Literal["auto", "eager", "relay", "fused", "panel"]
Precision = Literal["ieee", "tf32x3"]
"""Arithmetic of the kernels' products: ``ieee`` is plain float32; ``tf32x3`` sums three tensor-core products."""

DeviceKind = Literal["cuda", "interpreter", "cpu"]
"""``interpreter``: CPU tensors with ``TRITON_INTERPRET=1``."""

SWITCH = "SCAFFOLD_STACK_BWD_FUSED"
"""Environment variable: the ``auto`` backward takes ``PREFERRED_FUSED`` instead of the relay where it can."""

PREFERRED_FUSED: Path = "panel"
"""The faster of the two fused forms on every shape measured (``docs/gated-stack.md``)."""

K_TILE = 16
"""Rows of a K tile. Relay and fused kernels must agree on it, since it groups their sums; 16 is the least that
``tl.dot`` takes, and larger tiles spill registers in the fused kernels."""

_FUSED_CHANNELS = (16, 32)
_RELAY_CHANNELS = (16, 32, 64)
_MAX_DEGREE = 6


class IneligibleError(ValueError):
    """A path was demanded that cannot serve the call; ``reason`` is a key of ``GUARDS``."""

    def __init__(self, path: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"backward={path!r} cannot serve this call ({reason}: {REASONS[reason]}); use backward='auto'")


@dataclass(frozen=True)
class Request:
    """What a backward call asks for."""

    dims: StackDims
    dtype: str
    """Name of the dtype, ``float32``."""
    device_kind: DeviceKind
    needs_weight_grad: bool = False
    keeps_surfaces: bool = False
    """The caller wants the gradients of the pre-activations themselves."""
    has_cotangent: bool = False
    """A gradient arrives on the pre-activations or on the last layer's input."""
    grad_mode: bool = False
    """The backward itself is to be differentiated (``create_graph=True``)."""
    relay_k_tile: int = K_TILE


@dataclass(frozen=True)
class BackwardPlan:
    """The path taken; and, whether asked for or not, whether a fused path could serve the call."""

    path: Path
    eligible: bool
    reason: str
    """``ok``, or the first of ``GUARDS`` that refuses."""


REASONS: Mapping[str, str] = {
    "device": "the kernels need a GPU and Triton, or Triton's interpreter",
    "dtype": "the kernels compute in float32",
    "width": f"the fused kernels hold gates of {_FUSED_CHANNELS} channels in registers; the relay {_RELAY_CHANNELS}",
    "degree": f"the kernels are built for lmax up to {_MAX_DEGREE}",
    "k_tile": f"the relay's GEMM sums in other steps than {K_TILE}, so that bits would differ",
    "weight_grad": "weight gradients contract with the pre-activations' gradient in memory",
    "surfaces": "the caller keeps the pre-activations' gradient, which the fused kernels never store",
    "cotangent": "a gradient of the pre-activations must be added in memory",
    "grad_mode": "no kernel has a derivative of its own",
}

GUARDS: dict[str, Callable[[Request], bool]] = {
    "device": lambda request: request.device_kind == "cpu",
    "dtype": lambda request: request.dtype != "float32",
    "width": lambda request: request.dims.channels not in _FUSED_CHANNELS,
    "degree": lambda request: request.dims.lmax > _MAX_DEGREE,
    "k_tile": lambda request: request.relay_k_tile != K_TILE,
    "weight_grad": lambda request: request.needs_weight_grad,
    "surfaces": lambda request: request.keeps_surfaces,
    "cotangent": lambda request: request.has_cotangent,
    "grad_mode": lambda request: request.grad_mode,
}
"""Each says that it refuses the fused kernels."""


def plan_backward(request: Request, requested: Backward = "auto", switch: bool = False) -> BackwardPlan:
    """Choose the path of a backward.

    Args:
        request: the call.
        requested: ``auto``, or the path demanded; beats the switch.
        switch: whether ``SWITCH`` is on.

    Raises:
        IneligibleError: the path demanded cannot serve the call.
    """
    refusal = _first_refusal(request, GUARDS)
    relay_refusal = _first_refusal(request, _RELAY_GUARDS)
    eligible = refusal is None
    path: Path
    if requested == "auto":
        path = "eager" if relay_refusal else PREFERRED_FUSED if eligible and switch else "relay"
    else:
        path = requested
        against = {"eager": None, "relay": relay_refusal}.get(path, refusal)
        if against:
            raise IneligibleError(path, against)
    return BackwardPlan(path, eligible, refusal or "ok")


def can_run_kernels(dims: StackDims, dtype: str, device_kind: DeviceKind) -> bool:
    """Whether the Triton forward serves a call; the relay does under the same conditions."""
    return _first_refusal(Request(dims, dtype, device_kind), _RELAY_GUARDS) is None


def switch_is_on() -> bool:
    """Read ``SWITCH``: off when unset.

    Raises:
        UserError: it is neither a yes nor a no.
    """
    text = os.environ.get(SWITCH)
    if text is None:
        return False
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise UserError(f"{SWITCH} is {text!r}; allowed are 1, true, yes, on, 0, false, no, off (or leave it unset)")


def check_choice(name: str, value: str, choices: object) -> None:
    """Refuse a ``value`` that is none of a ``Literal``'s.

    Raises:
        ValueError: the message names what is allowed.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; allowed are {', '.join(map(repr, get_args(choices)))}")


_RELAY_GUARDS: dict[str, Callable[[Request], bool]] = {
    "device": GUARDS["device"],
    "dtype": GUARDS["dtype"],
    "width": lambda request: request.dims.channels not in _RELAY_CHANNELS,
    "degree": GUARDS["degree"],
    "grad_mode": GUARDS["grad_mode"],
}


def _first_refusal(request: Request, guards: Mapping[str, Callable[[Request], bool]]) -> str | None:
    return next((reason for reason, refuses in guards.items() if refuses(request)), None)


@dataclass(frozen=True)
class Tile:
    """Launch choice of one kernel: rows and columns of a program's tile, warps, pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


_TILES: dict[Precision, dict[str, Tile]] = {
    "ieee": {
        "gate": Tile(32, 0, 4, 2),
        "pointwise": Tile(16, 0, 4, 2),
        "gemm": Tile(64, 64, 4, 3),
        "tiled": Tile(64, 64, 4, 2),
        "panel_scalar": Tile(32, 32, 4, 3),
        "panel_vector": Tile(32, 64, 4, 2),
        "forward_scalar": Tile(32, 32, 4, 3),
        "forward_vector": Tile(32, 64, 4, 3),
    },
    # The tensor cores' large instruction needs 64 rows; smaller tiles would round otherwise.
    "tf32x3": {
        "gate": Tile(64, 0, 4, 2),
        "pointwise": Tile(64, 0, 4, 2),
        "gemm": Tile(64, 64, 4, 3),
        "tiled": Tile(64, 64, 4, 2),
        "panel_scalar": Tile(64, 64, 4, 2),
        "panel_vector": Tile(64, 64, 4, 3),
        "forward_scalar": Tile(64, 32, 4, 3),
        "forward_vector": Tile(64, 32, 4, 3),
    },
}


def tile_for(kernel: str, dims: StackDims, precision: Precision) -> Tile:
    """Return the tile of a kernel: the fastest of a sweep on an H200, without register spills there.

    A panel of several accumulators takes narrower ones where wide ones would overhang its block, and fewer
    stages at high degree, where three would leave room for one program a multiprocessor only.
    """
    tile = _TILES[precision][kernel]
    block_n, stages = tile.block_n, tile.num_stages
    if kernel in ("panel_vector", "forward_vector", "tiled") and dims.m1 % block_n:
        block_n = 32
    if precision == "tf32x3" and kernel in ("panel_vector", "forward_vector") and dims.m1 > 256:
        stages = 2
    return Tile(tile.block_m, block_n, tile.num_warps, stages)
