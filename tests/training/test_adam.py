"""The optimizer where no kernel serves it: PyTorch's own Adam, bit for bit, with a state that stays in place."""

import copy
import pickle
import re

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from scaffold.training.adam import Adam


def parameters():
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (7,), ())]


def set_gradients(made, step, scale=1.0):
    generator = torch.Generator().manual_seed(2 + step)
    for parameter in made:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def steps(made, optimizer, count, first=0, scale=1.0):
    for step in range(first, first + count):
        set_gradients(made, step, scale)
        if isinstance(optimizer, Adam):
            optimizer.step(max_norm=1.0)
        else:
            clip_grad_norm_(made, 1.0)
            optimizer.step()


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_on_a_cpu_it_is_pytorch_s(scale):
    """84: results of runs on CPUs would change."""
    ours, stock = parameters(), parameters()
    optimizer, theirs = Adam(ours, lr=0.1), torch.optim.Adam(stock, lr=0.1)
    steps(ours, optimizer, 5, scale=scale)
    steps(stock, theirs, 5, scale=scale)
    assert all(map(torch.equal, ours, stock))
    mine, its = optimizer.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == its["param_groups"]
    for index, entries in its["state"].items():
        assert all(torch.equal(mine["state"][index][name], tensor) for name, tensor in entries.items())


def test_without_a_norm_it_does_not_clip():
    """A clip that nobody asked for."""
    ours, stock = parameters(), parameters()
    set_gradients(ours, 0), set_gradients(stock, 0)
    Adam(ours, lr=0.1).step()
    torch.optim.Adam(stock, lr=0.1).step()
    assert all(map(torch.equal, ours, stock))


def test_pytorch_s_state_is_continued_in_place():
    """Earlier checkpoints stay readable; new tensors would leave a captured graph with the old ones."""
    ours, stock = parameters(), parameters()
    theirs = torch.optim.Adam(stock, lr=0.1)
    steps(stock, theirs, 3)
    theirs.param_groups[0]["lr"] = 0.05
    optimizer = Adam(ours, lr=0.1)
    addresses = [tensor.data_ptr() for tensor in optimizer.state_tensors()]
    optimizer.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        for mine, its in zip(ours, stock, strict=True):
            mine.copy_(its)
    steps(ours, optimizer, 2, first=3)
    steps(stock, theirs, 2, first=3)
    assert all(map(torch.equal, ours, stock))
    assert [tensor.data_ptr() for tensor in optimizer.state_tensors()] == addresses


def test_an_empty_state_is_a_fresh_one():
    """The warm-up's snapshot of PyTorch's Adam before its first step has none; moments would leak into training."""
    ours = parameters()
    optimizer = Adam(ours, lr=0.1)
    steps(ours, optimizer, 1)
    optimizer.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert all(tensor.count_nonzero() == 0 for tensor in optimizer.state_tensors())


def test_a_gpu_s_way_of_counting_does_not_follow_its_checkpoint():
    """A checkpoint from a GPU says ``capturable`` and ``fused``, which PyTorch refuses on a CPU."""
    ours = parameters()
    optimizer = Adam(ours, lr=0.1)
    saved = optimizer.state_dict()
    saved["param_groups"][0] |= {"capturable": True, "fused": True, "foreach": True}
    optimizer.load_state_dict(saved)
    steps(ours, optimizer, 1)
    group = optimizer.param_groups[0]
    assert (group["capturable"], group["fused"], group["foreach"]) == (False, None, None)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_by_itself(copied):
    """PyTorch copies only what its own Adam has: without the rest, the copy's first step raises."""
    ours, stock = parameters(), parameters()
    optimizer, theirs = Adam(ours, lr=0.1), torch.optim.Adam(stock, lr=0.1)
    steps(ours, optimizer, 2)
    steps(stock, theirs, 2)
    optimizer.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = 0.05
    before = [parameter.detach().clone() for parameter in ours]
    twins, twin = copied((ours, optimizer))
    steps(twins, twin, 2, first=2)
    steps(stock, theirs, 2, first=2)
    assert all(map(torch.equal, twins, stock))
    assert all(map(torch.equal, ours, before))
    assert twin._rate.device.item() == 0.05


def of_another_adam(saved, key, value):
    saved["param_groups"][0][key] = value


def of_another_shape(saved, *_):
    saved["state"][1]["exp_avg"] = torch.ones(1)


def of_fewer_parameters(saved, *_):
    saved["param_groups"][0]["params"].pop()


@pytest.mark.parametrize(
    ("spoil", "key", "value"),
    [
        (of_another_adam, "weight_decay", 0.1),
        (of_another_adam, "amsgrad", True),
        (of_another_adam, "maximize", True),
        (of_another_adam, "differentiable", True),
        (of_another_shape, "exp_avg", (1,)),
        (of_fewer_parameters, "parameter group", "size"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(spoil, key, value):
    """Ignored settings or a moment that broadcasts train otherwise; a state half loaded is nobody's."""
    ours, stock = parameters(), parameters()
    optimizer, theirs = Adam(ours, lr=0.1), torch.optim.Adam(stock, lr=0.2)
    steps(ours, optimizer, 1)
    steps(stock, theirs, 2)
    saved = theirs.state_dict()
    spoil(saved, key, value)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=rf"{key}.*{re.escape(str(value))}"):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for index, entries in before["state"].items():
        assert all(torch.equal(after["state"][index][name], tensor) for name, tensor in entries.items())


def test_a_second_group_is_refused():
    """Its learning rate and settings would be ignored."""
    with pytest.raises(ValueError, match="one group"):
        Adam(parameters(), lr=0.1).add_param_group({"params": parameters()})
