"""Replicas of the network, one per data-parallel rank, whose gradients are averaged."""

from __future__ import annotations

import warnings
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from scaffold.kernels import ladder
from scaffold.model.unet import UNet


def replicate(network: UNet, group: ProcessGroup) -> DistributedDataParallel:
    """Wrap ``network`` so that its backward pass averages gradients over ``group``. Collective.

    Rank 0's parameters become everyone's. The network must be on its device already.

    After its first backward pass DDP lays its buckets out anew, in the order in which gradients became
    ready; and with the place of a gradient in its bucket changes the order in which more than two ranks
    are added up. A pass over zeros takes that turn here, so that each training step, also the first after
    a restart, adds in the same order.
    """
    device = next(network.parameters()).device
    replica = DistributedDataParallel(
        network,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
    )
    with warnings.catch_warnings():
        # True of the 1^3 head alone, whose strides along extents of 1 have no meaning.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        replica(_smallest_input(network)).sum().backward()
    replica.zero_grad(set_to_none=True)
    # Which kernels serve so small a pass says nothing of the training.
    ladder.reset()
    return replica


def unwrapped(model: nn.Module) -> UNet:
    """Return the network itself, whether or not it is replicated."""
    return cast(UNet, model.module if isinstance(model, DistributedDataParallel) else model)


def _smallest_input(network: UNet) -> Tensor:
    edge = 2 << network.layers
    zeros = network.head.weight.new_zeros((1, network.in_channels, edge, edge, edge))
    return zeros.to(memory_format=torch.channels_last_3d)
