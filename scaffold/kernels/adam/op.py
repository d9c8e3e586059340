"""The choice of what takes a clipped Adam step.

No custom operator: nobody differentiates an optimizer's step or traces it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaffold.kernels.adam.driver import Workspace
from scaffold.kernels.adam.reference import AdamTensors, Rate, Settings, eager
from scaffold.kernels.ladder import Ladder, Rung, launch_region
from scaffold.kernels.refusals import no_triton

OP = "clipped_adam"
SWITCH = "SCAFFOLD_ADAM_TRITON"

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_DIMENSIONS = {torch.channels_last: 4, torch.channels_last_3d: 5}


class Workspaces:
    """What one optimizer's steps keep on the device from one to the next; empty until a kernel needs it."""

    def __init__(self) -> None:
        self._workspaces: dict[tuple[tuple[int, ...], torch.device], Workspace] = {}

    def of(self, tensors: AdamTensors) -> Workspace:
        """Return the workspace for tensors of these sizes, always the same one: a graph may hold its addresses."""
        sizes = tuple(parameter.numel() for parameter in tensors.parameters)
        key = sizes, tensors.parameters[0].device
        if key not in self._workspaces:
            self._workspaces[key] = Workspace(*key)
        return self._workspaces[key]


def clipped_adam(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> None:
    """Scale all gradients so that their norm is at most ``max_norm``, and take a step of Adam.

    Contract: :func:`~scaffold.kernels.adam.reference.eager`. The kernels round differently from it, in the
    last bits; each repeats its own bits.

    Args:
        tensors: all on one device.
        rate: the learning rate.
        settings: the rest.
        workspaces: of the optimizer; must outlive CUDA graphs that captured a step.
    """
    _ladder(tensors, rate, settings, workspaces)


def declines(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> str | None:
    """Return why the kernels cannot take the step, or None."""
    if not tensors.parameters:
        return "there is no parameter"
    everything = [tensor for part in tensors for tensor in part]
    if reason := no_triton(rate.device, *everything):
        return reason
    device = rate.device.device
    for tensor in everything:
        if tensor.dtype != torch.float32:
            return f"a tensor is {tensor.dtype}, not float32"
        if tensor.device != device:
            return f"tensors lie on {tensor.device} and {device}"
    for together in zip(*tensors[:4], strict=True):
        if not any(all(_is_dense(tensor, order) for tensor in together) for order in _FORMATS):
            return "a parameter, its gradient and its moments are not dense in the same order of memory"
    return None


def _is_dense(tensor: Tensor, order: torch.memory_format) -> bool:
    return _DIMENSIONS.get(order, tensor.dim()) == tensor.dim() and tensor.is_contiguous(memory_format=order)


def _with_kernels(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> None:
    with launch_region(OP):
        workspaces.of(tensors).step(tensors, rate, settings)


def _with_pytorch(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> None:
    eager(tensors, rate, settings)


_ladder: Ladder[None] = Ladder(
    OP, [Rung("triton", SWITCH, declines, _with_kernels), Rung("eager", None, None, _with_pytorch)]
)
