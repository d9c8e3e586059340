"""The choice of what takes a clipped Adam step.

No custom operator: nobody differentiates an optimizer's step or traces it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    # The rest is not asked for tangents, which nobody sends through an optimizer: that takes longer than all else.
    if reason := no_triton(rate.device):
        return reason
    for name, beta in (("beta1", settings.beta1), ("beta2", settings.beta2)):
        if not 0.0 < beta < 1.0:
            return f"{name} is {beta}, whose powers are not taken by logarithms"
    device = rate.device.device
    everything = [tensor for part in tensors for tensor in part]
    for kind in {type(tensor) for tensor in everything} - {Tensor, nn.Parameter}:
        return f"{kind.__name__} is a subclass of Tensor"
    for dtype in {tensor.dtype for tensor in everything} - {torch.float32}:
        return f"a tensor is {dtype}, not float32"
    for other in {tensor.device for tensor in everything} - {device}:
        return f"tensors lie on {other} and {device}"
    for parameter, gradient, exp_avg, exp_avg_sq in zip(*tensors[:4], strict=True):
        if not parameter.numel():
            return "a parameter is empty, and its steps would not be counted"
        if parameter.stride() == gradient.stride() == exp_avg.stride() == exp_avg_sq.stride():
            together: tuple[Tensor, ...] = (parameter,)
        else:
            # Strides along extents of 1 mean nothing and may differ.
            together = (parameter, gradient, exp_avg, exp_avg_sq)
        if not any(_are_dense(together, order) for order in _FORMATS):
            return "a parameter, its gradient and its moments are not dense in the same order of memory"
    return None


def _are_dense(tensors: tuple[Tensor, ...], order: torch.memory_format) -> bool:
    dimensions = _DIMENSIONS.get(order)
    return all(dimensions in (None, tensor.dim()) and tensor.is_contiguous(memory_format=order) for tensor in tensors)


def _with_kernels(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> None:
    with launch_region(OP, on=rate.device):
        workspaces.of(tensors).step(tensors, rate, settings)


def _with_pytorch(tensors: AdamTensors, rate: Rate, settings: Settings, workspaces: Workspaces) -> None:
    eager(tensors, rate, settings)


_ladder: Ladder[None] = Ladder(
    OP, [Rung("triton", SWITCH, declines, _with_kernels), Rung("eager", None, None, _with_pytorch)]
)
