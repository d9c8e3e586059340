"""Replicas of the network, one per data-parallel rank, whose gradients are averaged."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from scaffold.model.unet import UNet


def replicate(network: UNet, group: ProcessGroup) -> DistributedDataParallel:
    """Wrap ``network`` so that its backward pass averages gradients over ``group``. Collective.

    Rank 0's parameters become everyone's. The network must be on its device already.

    After its first backward pass DDP lays its buckets out anew, in the order in which gradients arrive,
    and with the layout changes the order in which a ring adds more than two ranks. A pass over zeros
    takes that step here, so that every training step, also the first after a restart, adds in the
    same order.
    """
    first = next(network.parameters())
    ddp = DistributedDataParallel(
        network,
        device_ids=[first.device] if first.device.type == "cuda" else None,
        process_group=group,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
    for _ in range(2):
        # The new layout is taken up at the start of the second pass.
        ddp(_smallest_input(network)).sum().backward()
    ddp.zero_grad(set_to_none=True)
    return ddp


def unwrapped(model: nn.Module) -> UNet:
    """Return the network itself, whether or not it is replicated."""
    return cast(UNet, model.module if isinstance(model, DistributedDataParallel) else model)


def _smallest_input(network: UNet) -> torch.Tensor:
    edge = 2 << network.layers
    zeros = network.head.weight.new_zeros((1, network.in_channels, edge, edge, edge))
    return zeros.to(memory_format=torch.channels_last_3d)
