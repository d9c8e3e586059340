"""GroupNorm + ReLU as PyTorch operators: autograd, ``torch.compile``, and the choice of the implementation.

Both directions are custom operators, opaque to ``torch.compile``. They are differentiable once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scaffold.kernels import compiled
from scaffold.kernels.group_norm import launch, reference
from scaffold.kernels.group_norm.plan import MOST_GROUP_CHANNELS, ceil_power_of_2
from scaffold.kernels.group_norm.reference import Gather
from scaffold.kernels.ladder import Ladder, Rung
from scaffold.kernels.refusals import no_triton

TRITON, COMPILE = "SCAFFOLD_GROUPNORM_TRITON", "SCAFFOLD_GROUPNORM_COMPILE"

eager = reference.group_norm_relu
eager_pool = reference.group_norm_relu_pool

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LAST = torch.channels_last_3d


def group_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5, partials: Gather | None = None,
    site: Any = None,
) -> Tensor:  # fmt: skip
    """Return ``relu(group_norm(x))`` (Wu and He: Group normalization, 2018).

    Contract of every implementation: statistics, affine map and ReLU are float32 (float64 for float64
    input) whatever the storage type, with one rounding at the end; the output has the dtype and the
    memory format of ``x``, under autocast too (PyTorch's own group_norm answers with float32 there),
    though inside a functorch transform in any format;
    the input's gradient has the input's dtype, the parameters' gradients theirs; NaN is never hidden.

    Args:
        x: (N, C, D, H, W), any floating dtype; the whole sample, or this rank's block of it.
        weight: (C,).
        bias: (C,).
        groups: divides C.
        eps: added to the variance.
        partials: None if ``x`` is the whole sample. Otherwise gathers one row per depth plane of every
            block: called once in the forward pass with (D, N, groups, 3), the count, the mean and the
            sum of squared deviations of each plane, and once in the backward pass with
            (D, N, groups, 2), the sums of dy*weight and dy*weight*xhat. Blocks may differ in size. The
            gradients of ``weight`` and ``bias`` remain this block's share of the sum.
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Raises:
        RuntimeError: ``groups`` does not divide C.
    """
    if partials is None:
        return _ladder(x, weight, bias, groups, eps, None, site=site)
    gathering = _Gathering(partials)
    y = _ladder(x, weight, bias, groups, eps, gathering, site=site)
    gathering.end_forward()
    return y


def group_norm_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5, site: Any = None
) -> tuple[Tensor, Tensor]:
    """Return ``y = group_norm_relu(x)`` and ``max_pool3d(y, 2)``, with PyTorch's rules for ties and NaN.

    The backward pass adds the gradient of the maxima to that of ``y`` in float32 as it reads them, without
    a scatter, so that it is deterministic; the gradient of ``y`` may be a slice of channels of a wider
    channels-last tensor, which is read in place.

    Args:
        x: (N, C, D, H, W), any floating dtype.
        weight: (C,).
        bias: (C,).
        groups: divides C.
        eps: added to the variance.
        site: the module that calls (:mod:`scaffold.kernels.ladder`).

    Returns:
        (N, C, D, H, W) and (N, C, D // 2, H // 2, W // 2), in the dtype and the memory format of ``x``.

    Raises:
        RuntimeError: ``groups`` does not divide C, or an extent is less than 2.
    """
    return _pool_ladder(x, weight, bias, groups, eps, site=site)


def declines(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5, partials: Gather | None = None, *,
    pool: bool = False,
) -> str | None:  # fmt: skip
    """Say why the kernels do not take a call; None means that they do."""
    reason = no_triton(x, weight, bias)
    if reason:
        return reason
    if weight.device != x.device or bias.device != x.device:
        return f"weight is on {weight.device} and bias on {bias.device}, x on {x.device}"
    if x.dim() != 5 or not x.is_contiguous(memory_format=_LAST):
        return "x is not a 5-D tensor that is dense in channels-last order"
    if x.dtype not in _DTYPES:
        return f"x is {x.dtype}, not bfloat16, float16 or float32"
    if any(p.dtype not in (x.dtype, torch.float32) for p in (weight, bias)):
        return f"weight is {weight.dtype} and bias {bias.dtype}, neither {x.dtype} as x nor float32"
    C, voxels = x.shape[1], x.shape[2:].numel()
    if groups < 1 or C % groups or weight.shape != (C,) or bias.shape != (C,):
        return f"{groups} groups, weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit {C} channels"
    if x.numel() == 0 or voxels * (C // groups) == 1:
        return "x is empty, or its groups have one element each"
    if pool and min(x.shape[2:]) < 2:
        return "an extent is less than the pooling window's 2"
    if ceil_power_of_2(C // groups) > MOST_GROUP_CHANNELS or voxels >= 2**31 or x.shape[0] * x.shape[2] >= 2**16:
        return "a group has too many channels, a sample too many voxels, or there are too many planes"
    return None


def triton(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5, partials: Gather | None = None
) -> Tensor:
    """Serve ``group_norm_relu`` by the kernels, if ``declines`` lets the call pass."""
    if partials is not None:
        return _BlockGroupNormReLU.apply(x, weight.contiguous(), bias.contiguous(), groups, eps, partials)  # type: ignore[no-any-return, no-untyped-call]
    return _forward_op(x, weight.contiguous(), bias.contiguous(), groups, eps)[0]  # type: ignore[no-any-return]


def triton_pool(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """Serve ``group_norm_relu_pool`` by the kernels, if ``declines`` lets the call pass."""
    y, pooled, _, _ = _pool_op(x, weight.contiguous(), bias.contiguous(), groups, eps)
    return y, pooled


def _declines_pool(*arguments: Any) -> str | None:
    return declines(*arguments, pool=True)


def _compiled_declines(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, partials: Gather | None = None
) -> str | None:
    if partials is not None:
        return "a gathering hook cannot be compiled"
    if x.dim() != 5 or groups < 1 or x.shape[1] % groups or not weight.shape == bias.shape == x.shape[1:2]:
        return "the shapes do not fit; the plain formula says so"
    return compiled.declines(x, weight, bias)


def _compiled_hesitates(x: Tensor, *others: Any) -> str | None:
    return compiled.hesitates(x)


_ladder = Ladder(
    launch.OP,
    [
        Rung("triton", TRITON, declines, triton),
        Rung("compiled", COMPILE, _compiled_declines, compiled.compiled(launch.OP, eager), _compiled_hesitates),
        Rung("eager", None, None, eager),
    ],
)
_pool_ladder = Ladder(
    launch.POOL_OP,
    [
        Rung("triton", TRITON, _declines_pool, triton_pool),
        Rung(
            "compiled", COMPILE, _compiled_declines, compiled.compiled(launch.POOL_OP, eager_pool),
            _compiled_hesitates,
        ),
        Rung("eager", None, None, eager_pool),
    ],
)  # fmt: skip


class _Gathering:
    """A gathering hook that asks the other ranks once in a forward pass.

    They answer no second time when a rung fails here after gathering and the next begins anew.
    """

    def __init__(self, gather: Gather) -> None:
        self._gather, self._in_forward = gather, True
        self._rows: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        if not self._in_forward:
            return self._gather(rows)
        if self._rows is None:
            self._rows = self._gather(rows)
        return self._rows

    def end_forward(self) -> None:
        self._in_forward, self._rows = False, None


@torch.library.custom_op("scaffold::group_norm_relu", mutates_args=())
def _forward_op(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return y and the statistics (N, groups, 3)."""
    result = launch.normalise(x, weight, bias, launch.moments(x, groups), groups, eps)
    return result.y, result.statistics


@_forward_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    statistics = x.new_empty((x.shape[0], groups, 3), dtype=torch.float32)
    return torch.empty_like(x, memory_format=_LAST), statistics


@torch.library.custom_op("scaffold::group_norm_relu_pool", mutates_args=())
def _pool_op(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, the maxima, their places, and the statistics."""
    moments = launch.moments(x, groups, op=launch.POOL_OP)
    result = launch.normalise(x, weight, bias, moments, groups, eps, pool=True, op=launch.POOL_OP)
    return result.y, result.pooled, result.argmax, result.statistics


@_pool_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, C, D, H, W = x.shape
    pooled = torch.empty((N, C, D // 2, H // 2, W // 2), dtype=x.dtype, device=x.device, memory_format=_LAST)
    statistics = x.new_empty((N, groups, 3), dtype=torch.float32)
    return torch.empty_like(x, memory_format=_LAST), pooled, torch.empty_like(pooled, dtype=torch.uint8), statistics


@torch.library.custom_op("scaffold::group_norm_relu_backward", mutates_args=())
def _backward_op(
    dy: Tensor | None, dpooled: Tensor | None, argmax: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor,
    statistics: Tensor, groups: int, op: str = launch.OP,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, weight and bias; ``op`` is the operation that a failure is told of."""
    incoming = _incoming(dy, dpooled, argmax)
    sums = launch.gradient_sums(incoming, x, weight, bias, statistics, groups, op=op)
    return launch.input_gradient(incoming, x, weight, bias, statistics, sums, groups, op=op)


@_backward_op.register_fake
def _(
    dy: Tensor | None, dpooled: Tensor | None, argmax: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor,
    statistics: Tensor, groups: int, op: str = launch.OP,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x, memory_format=_LAST), torch.empty_like(weight), torch.empty_like(bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, ctx.groups, _ = inputs
    ctx.set_materialize_grads(False)
    if len(output) == 2:
        ctx.op, argmax, statistics = launch.OP, None, output[1]
        ctx.mark_non_differentiable(statistics)
    else:
        ctx.op, (_, _, argmax, statistics) = launch.POOL_OP, output
        ctx.mark_non_differentiable(argmax, statistics)
    ctx.save_for_backward(x, weight, bias, statistics, argmax)


def _backward(ctx: Any, dy: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, statistics, argmax = ctx.saved_tensors
    dpooled = others[0] if argmax is not None else None
    if dy is None and dpooled is None:
        return (None,) * 5
    if dpooled is None:
        argmax = None
    return (*_backward_op(dy, dpooled, argmax, x, weight, bias, statistics, ctx.groups, ctx.op), None, None)


_forward_op.register_autograd(_backward, setup_context=_setup_context)
_pool_op.register_autograd(_backward, setup_context=_setup_context)


class _BlockGroupNormReLU(torch.autograd.Function):
    """The operation on one block of a sample.

    What the blocks share is merged here, in float64 and then rounded, so that it does not matter in which order
    PyTorch adds: that depends on how many planes a block has.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, partials: Gather) -> Tensor:
        N, _, D, _, _ = x.shape
        of_planes = reference.merge(launch.moments(x, groups, planes=True).double()).float()
        rows = partials(of_planes.view(N, D, groups, 3).transpose(0, 1).contiguous())
        moments = reference.merge(rows.double()).float()
        result = launch.normalise(x, weight, bias, moments[None].contiguous(), groups, eps)
        ctx.save_for_backward(x, weight, bias, result.statistics)
        ctx.groups, ctx.partials = groups, partials
        return result.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics = ctx.saved_tensors
        N, _, D, _, _ = x.shape
        incoming = _incoming(gradients[0], None, None)
        sums = launch.gradient_sums(incoming, x, weight, bias, statistics, ctx.groups, planes=True)
        of_planes = sums.of_groups.sum(0, dtype=torch.float64).float()
        rows = ctx.partials(of_planes.view(N, D, ctx.groups, 2).transpose(0, 1).contiguous())
        sums = sums._replace(of_groups=rows.sum(0, keepdim=True, dtype=torch.float64).float())
        return (*launch.input_gradient(incoming, x, weight, bias, statistics, sums, ctx.groups), None, None, None)


def _incoming(dy: Tensor | None, dpooled: Tensor | None, argmax: Tensor | None) -> launch.Incoming:
    if dpooled is not None:
        dpooled = dpooled.contiguous(memory_format=_LAST)
    return launch.Incoming(None if dy is None else launch.readable(dy), dpooled, argmax)
