"""Taking a learner's state out and putting it back."""

import json
import random

import numpy as np
import pytest
import torch
from tiny_learner import batch_of, tiny_learner

from scaffold.training.state import State, capture, restore
from scaffold.training.step import train_step


def trained(optimizer, steps=2):
    learner = tiny_learner(torch.float32, optimizer=optimizer, T_0=3)
    for step in range(steps):
        train_step(learner, batch_of(step))
        learner.scheduler.step()
    return learner


def through_a_file(state):
    """Return ``state`` as a checkpoint gives it back: host clones, and facts that went through JSON."""
    return State(state.on_host().tensors, json.loads(json.dumps(state.facts)))


@pytest.mark.parametrize("optimizer", ["ADAM", "SGD", "RMSProp"])
def test_a_restored_learner_goes_on_as_the_original(optimizer):
    """A forgotten moment or schedule position trains on, to another result."""
    original = trained(optimizer)
    copy = tiny_learner(torch.float32, optimizer=optimizer, T_0=3)
    restore(copy, through_a_file(capture(original, {})))
    for learner in (original, copy):
        train_step(learner, batch_of(7))
        learner.scheduler.step()
        train_step(learner, batch_of(8))
    for mine, its in zip(original.model.parameters(), copy.model.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert original.scheduler.get_last_lr() == copy.scheduler.get_last_lr()
    fresh = tiny_learner(torch.float32, optimizer=optimizer, T_0=3)
    assert not torch.equal(next(fresh.model.parameters()), next(copy.model.parameters()))


def test_all_random_number_generators_continue():
    """Anything random after a resume would otherwise repeat the numbers of the start."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.gauss(0, 1), np.random.standard_normal()  # both keep a second number for later
    learner = tiny_learner()
    state = through_a_file(capture(learner, {}))
    wanted = [random.gauss(0, 1), np.random.standard_normal(), np.random.rand(), torch.rand(1).item()]
    restore(learner, state)
    assert [random.gauss(0, 1), np.random.standard_normal(), np.random.rand(), torch.rand(1).item()] == wanted


def test_the_host_copy_shares_no_memory():
    """A background write of the live tensors would save a mixture of two steps."""
    learner = trained("ADAM")
    state = capture(learner, {}).on_host()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    train_step(learner, batch_of(3))
    assert all(torch.equal(before[name], tensor) for name, tensor in state.tensors.items())
    live = capture(learner, {}).tensors
    assert not torch.equal(before["model.head.weight"], live["model.head.weight"])


def test_a_used_copy_is_overwritten_where_it_fits():
    """New memory for each copy makes training wait several times as long; wrong memory saves nonsense."""
    learner = trained("ADAM")
    used = capture(learner, {}).on_host()
    misfit = used.tensors["model.head.bias"] = torch.zeros(99)
    places = {name: tensor.data_ptr() for name, tensor in used.tensors.items()}
    train_step(learner, batch_of(3))
    live = capture(learner, {"epoch": 3})
    copy = live.on_host(used)
    assert copy.facts == live.facts
    assert all(torch.equal(tensor, live.tensors[name]) for name, tensor in copy.tensors.items())
    assert [name for name, tensor in copy.tensors.items() if tensor.data_ptr() != places[name]] == ["model.head.bias"]
    assert not misfit.any()
