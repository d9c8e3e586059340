"""What the kernels of Adam keep on the device."""

import gc
import weakref

import torch

from scaffold.kernels.adam import AdamTensors, Workspaces


def tensors(*sizes):
    made = [torch.zeros(size) for size in sizes]
    return AdamTensors(made, made, made, made, made)


def test_workspaces_stay_for_the_graphs_that_hold_their_addresses():
    """85: replaced when a step met other tensors, one would be freed under a graph that reads and writes it."""
    workspaces = Workspaces()
    first = weakref.ref(workspaces.of(tensors(3, 4)))
    for other in ((3,), (4, 3), (3, 5)):
        assert workspaces.of(tensors(*other)).sizes == other
    gc.collect()
    assert first() is not None
    assert workspaces.of(tensors(3, 4)) is first()
