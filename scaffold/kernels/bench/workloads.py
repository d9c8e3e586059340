"""Which workloads there are. Their modules are imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import cast

import torch

from scaffold.kernels.bench.case import Recipe, Sizes

_UNET = "scaffold.kernels.unet_bench"

WORKLOADS: dict[str, str] = {
    "gated_stack_backward": "scaffold.kernels.gated_stack.bench_backward:recipes",
    "gated_stack_forward": "scaffold.kernels.gated_stack.bench_forward:recipes",
    "group_norm_forward": f"{_UNET}.group_norm:forward",
    "group_norm_backward": f"{_UNET}.group_norm:backward",
    "convolution_forward": f"{_UNET}.convolution:forward",
    "convolution_input_gradient": f"{_UNET}.convolution:input_gradient",
    "convolution_weight_gradient": f"{_UNET}.convolution:weight_gradient",
    "stem_forward": f"{_UNET}.stem:forward",
    "stem_weight_gradient": f"{_UNET}.stem:weight_gradient",
    "upsample_forward": f"{_UNET}.upsample:forward",
    "upsample_backward": f"{_UNET}.upsample:backward",
    "head_forward": f"{_UNET}.head:forward",
    "head_backward": f"{_UNET}.head:backward",
    "last_norm_head_forward": f"{_UNET}.last_norm_head:forward",
    "last_norm_head_backward": f"{_UNET}.last_norm_head:backward",
    "loss_sums_forward": f"{_UNET}.loss_sums:forward",
    "loss_sums_backward": f"{_UNET}.loss_sums:backward",
    "clipped_adam": f"{_UNET}.adam:step",
}
"""Name: module and function, which takes a device and ``Sizes`` and returns a list of ``Recipe``."""


def recipes(name: str, device: torch.device, sizes: Sizes) -> list[Recipe]:
    """Return the recipes of the workload ``name``."""
    module, _, function = WORKLOADS[name].partition(":")
    return cast(list[Recipe], getattr(importlib.import_module(module), function)(device, sizes))
