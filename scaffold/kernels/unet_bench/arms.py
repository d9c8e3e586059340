"""What the workloads share: random operands, arms, comparison with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from scaffold.kernels import ladder
from scaffold.kernels.bench import Arm, Result

LAST = torch.channels_last_3d


def dtype_on(device: torch.device) -> torch.dtype:
    """Return the dtype of activations: bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def activation(channels: int, edge: int, device: torch.device) -> Tensor:
    """Return a random (1, channels, edge, edge, edge) in channels-last order."""
    shape = (1, channels, edge, edge, edge)
    tensor = torch.empty(shape, dtype=dtype_on(device), device=device, memory_format=LAST)
    tensor.normal_()
    return tensor


def filters(shape: tuple[int, ...], fan_in: int, device: torch.device) -> Tensor:
    """Return a random weight in channels-last order, by which unit variance stays unit variance."""
    weight: Tensor = torch.randn(shape, device=device) / fan_in**0.5
    return weight.to(dtype=dtype_on(device), memory_format=LAST)


class Backward:
    """The backward pass of a formula, whose forward pass is made once, by the first call.

    Args:
        formula: of the operands.
        operands: to be differentiated by.
        incoming: gradients of the formula's results.
    """

    def __init__(self, formula: Callable[..., Result], operands: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        self._formula, self._incoming = formula, tuple(incoming)
        self._leaves = [operand.detach().requires_grad_() for operand in operands]
        self._results: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """Return the gradients of the operands."""
        if not self._results:
            results = self._formula(*self._leaves)
            self._results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(self._results, self._leaves, self._incoming, retain_graph=True)


def ours(operation: str, run: Callable[[], Result]) -> Arm:
    """Return the arm of one of our operations, named as the rung that serves it; ``run`` is run once.

    Args:
        operation: name of its ladder.
        run: what is timed.
    """
    before = ladder.served().get(operation, {})
    run()
    served = ladder.served()[operation]
    name = next(rung for rung, count in served.items() if count != before.get(rung, 0))
    return Arm(name, run, compiles=True)


def channel_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums over voxels of a[i] * b[j], (I, J), in float64.

    Plane by plane, since one product of so few rows and columns would keep a single multiprocessor busy.

    Args:
        a: (I, D, H, W).
        b: (J, D, H, W).
    """
    a, b = (tensor.double().flatten(2).transpose(0, 1) for tensor in (a, b))
    return (a @ b.transpose(1, 2)).sum(0)


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the root mean square error of the worst tensor, relative to the root mean square of the exact one."""
    errors = [((f.double() - e).square().mean() / e.square().mean()).sqrt() for f, e in zip(found, exact, strict=True)]
    return cast(float, torch.stack(errors).max().item())
