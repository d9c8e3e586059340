"""What a clipped Adam step is, in PyTorch's own operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.adam import adam


class AdamTensors(NamedTuple):
    """The tensors of a step, T of each; those with the same place belong together.

    Attributes:
        parameters: any shapes, floating, changed in place.
        gradients: of the parameters' shapes and dtypes; afterwards undefined.
        exp_avgs: first moments, changed in place.
        exp_avg_sqs: second moments, changed in place.
        steps: () float32, the number of steps taken, changed in place.
    """

    parameters: list[Tensor]
    gradients: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]


class Rate(NamedTuple):
    """The learning rate, twice.

    Attributes:
        host: the number.
        device: () float64, its copy on the device, which kernels and replayed graphs read.
    """

    host: float
    device: Tensor


class Settings(NamedTuple):
    """The numbers of a step.

    Attributes:
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        max_norm: greatest L2 norm of all gradients together.
    """

    beta1: float
    beta2: float
    eps: float
    max_norm: float


def eager(tensors: AdamTensors, rate: Rate, settings: Settings) -> None:
    """Scale all gradients so that their norm is at most ``max_norm``, and take a step of Adam.

    As ``torch.nn.utils.clip_grad_norm_`` followed by ``torch.optim.Adam``: gradients are multiplied by
    min(1, max_norm / (norm + 1e-6)), so that a norm of infinity zeroes finite gradients, and NaN spreads
    to every parameter. Nothing waits for the device.

    Args:
        tensors: all on one device.
        rate: the learning rate.
        settings: the rest.
    """
    if not tensors.gradients:
        return
    coefficient = (settings.max_norm / (get_total_norm(tensors.gradients) + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(tensors.gradients, coefficient)
    on_gpu = coefficient.is_cuda
    lists = tensors[:4]
    # The fused form takes only tensors of one order in memory, and says so by failing.
    fused = on_gpu and all(len({tensor.stride() for tensor in group}) == 1 for group in zip(*lists, strict=True))
    adam(
        *lists, [], tensors.steps,
        lr=rate.device.float() if on_gpu else rate.host, beta1=settings.beta1, beta2=settings.beta2, eps=settings.eps,
        weight_decay=0.0, amsgrad=False, maximize=False, capturable=on_gpu, fused=fused,
    )  # fmt: skip
