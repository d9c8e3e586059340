"""The warm-up: which shapes it runs, and that it leaves no trace."""

import random

import numpy as np
import pytest
import torch
from tiny_learner import ThreadTeam, batch_of, tiny_learner, training_batches, validation_batches

from scaffold.parallel.team import Solo
from scaffold.training import step, warmup
from scaffold.training.step import train_step
from scaffold.training.warmup import warm_up


def state_of(learner):
    """Everything that training depends on, flattened to comparable values."""
    parts = [learner.model.state_dict(), learner.optimizer.state_dict(), learner.scheduler.state_dict()]
    generators = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    return list(_leaves([parts, generators, learner.model.training]))


def _leaves(value):
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            yield name
            yield from _leaves(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


@pytest.mark.parametrize("resumed", [False, True])
def test_state_afterwards_is_the_state_before(resumed, monkeypatch):
    """Hazard 17: a leaked weight, moment, learning rate or random number makes warmed-up runs another benchmark."""
    learner = tiny_learner()
    if resumed:
        train_step(learner, batch_of(3, 4))
        learner.scheduler.step()
    learner.model.eval()
    before, during = state_of(learner), []
    plain = warmup.evaluate

    def draws(*arguments, **keywords):
        random.random(), np.random.rand(), torch.rand(1)
        learner.scheduler.step()
        during.append(state_of(learner))
        return plain(*arguments, **keywords)

    monkeypatch.setattr(warmup, "evaluate", draws)
    report = warm_up(learner, training_batches(5, 2), validation_batches(2, 2), 2, Solo())
    assert report.widths == [2, 2, 1]
    assert during[0] != before, "control: the warm-up did change things"
    assert state_of(learner) == before
    assert all(parameter.grad is None for parameter in learner.model.parameters())


def test_training_after_a_warm_up_is_training_without_one():
    """Hazard 17: the end-to-end form; also for what no state dict lists."""
    results = []
    for batches in (0, 3):
        learner = tiny_learner()
        warm_up(learner, training_batches(4, 2), validation_batches(2, 2), batches, Solo())
        results.append([train_step(learner, batch_of(0, 1)).loss.item() for _ in range(3)])
    assert results[0] == results[1]


def test_state_is_restored_when_the_warm_up_fails(monkeypatch):
    """An error that is handled above must leave neither a half-trained network nor half a step's gradients."""
    learner = tiny_learner()
    before = state_of(learner)
    plain, calls = step.update, []

    def fails_in_the_second_step(optimizer):
        calls.append(plain(optimizer))
        assert len(calls) < 2

    monkeypatch.setattr(step, "update", fails_in_the_second_step)
    with pytest.raises(AssertionError):
        warm_up(learner, training_batches(4, 2), validation_batches(2, 2), 2, Solo())
    assert state_of(learner) == before
    assert all(parameter.grad is None for parameter in learner.model.parameters())


def test_steps_are_those_of_training_and_validation():
    """Another mode than the timed one's would warm up other kernels."""
    learner, modes = tiny_learner(), []
    learner.model.eval()
    learner.model.register_forward_hook(lambda module, _, y: modes.append((module.training, y.requires_grad)))
    warm_up(learner, training_batches(4, 2), validation_batches(2, 2), 2, Solo())
    assert modes == [(True, True), (True, True), (False, False)]


def test_snapshot_shares_no_memory():
    """Hazard 17: on the CPU, moving to the host is no copy, and the snapshot would follow the training."""
    learner = tiny_learner()
    train_step(learner, batch_of(0, 1))
    originals = {tensor.data_ptr() for tensor in _tensors([learner.model.state_dict(), learner.optimizer.state_dict()])}
    copies = _tensors(warmup._host_clone([learner.model.state_dict(), learner.optimizer.state_dict()]))
    assert len(copies) == len(originals) > 50
    assert not originals & {tensor.data_ptr() for tensor in copies}
    assert {tensor.device.type for tensor in copies} == {"cpu"}


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


@pytest.mark.parametrize(
    ("train", "size", "validate", "steps", "widths", "validation_widths"),
    [
        (5, 2, 4, 2, [2, 2, 1], [2, 2]),
        (5, 2, 4, 64, [2, 2, 1], [2, 2]),  # the last batch was met already
        (6, 3, 5, 64, [3, 3], [3, 2]),  # only validation ends with 2
        (4, 2, 5, 1, [2], [2, 1]),
        (4, 2, 4, 0, [], []),
        (1, 3, 2, 64, [1], [2]),
    ],
)
def test_each_batch_size_is_met_once(train, size, validate, steps, widths, validation_widths):
    """Hazard 18: a shape first seen in a timed epoch pays its search, or the capture of its graph, there."""
    training, validation = training_batches(train, size), validation_batches(validate, size)
    assert warm_up(tiny_learner(), training, validation, steps, Solo()) == (widths, validation_widths)


def test_ranks_take_equally_many_steps():
    """Hazard 18: ranks that run different numbers of steps hang; also one that validates nothing."""

    def rank(team):
        training, validation = training_batches(13, 3, team.rank, 2), validation_batches(sizes[team.rank], 3)
        return warm_up(tiny_learner(), training, validation, 2, team)

    sizes = [2, 0]
    # 13 samples are 7 for each rank, which leave 1.
    assert ThreadTeam.run(2, rank) == [([3, 3, 1], [2]), ([3, 3, 1], [])]


def test_samplers_start_from_the_same_epoch():
    """Warmed up in whatever epoch came last, a resumed run would read other files than a fresh one."""
    training = training_batches(4, 2)
    training.sampler.set_epoch(9)
    warm_up(tiny_learner(), training, validation_batches(2, 2), 1, Solo())
    assert training.sampler.epoch == 0
