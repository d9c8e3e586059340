"""Steps taken before the clock starts, and undone again.

The first step of each batch shape pays for what later ones reuse: kernel selection and compilation,
allocator growth, communication buffers, loader processes.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from scaffold.parallel.team import Team
from scaffold.training.evaluation import evaluate
from scaffold.training.replicas import unwrapped
from scaffold.training.step import Batch, Learner, train_step


class WarmUp(NamedTuple):
    """What the warm-up ran.

    Attributes:
        widths: batch size of each training step, in order.
        validation_batches: number of validation batches.
    """

    widths: list[int]
    validation_batches: int


def warm_up(
    learner: Learner,
    training: DataLoader[Any],
    validation: DataLoader[Any],
    steps: int,
    team: Team,
) -> WarmUp:
    """Run real training and validation steps, then restore everything bit for bit. Collective.

    Besides the first ``steps`` batches, one step is run for each size of a last, smaller batch that
    occurs on any rank: all ranks must take the same number of steps.

    Args:
        learner: as it will be trained.
        training: this replica's training batches.
        validation: this replica's validation batches.
        steps: greatest number of batches of each; 0 skips the warm-up.
        team: all ranks of the training.
    """
    own = {len(training.sampler) % _batch_size(training), len(validation.sampler) % _batch_size(validation)}  # type: ignore[arg-type]
    ragged = sorted(set().union(*team.exchange(own)))
    if steps <= 0:
        return WarmUp([], 0)
    for part in (training, validation):
        if hasattr(part.sampler, "set_epoch"):
            part.sampler.set_epoch(0)
    with _undone(learner):
        widths = _train(learner, training, steps, ragged)
        tried = evaluate(learner, validation, max_batches=steps)
    team.barrier()
    return WarmUp(widths, tried.batches)


def _train(learner: Learner, batches: DataLoader[Any], steps: int, ragged: list[int]) -> list[int]:
    unwrapped(learner.model).train()
    widest: Batch = {}
    widths: list[int] = []
    for batch in islice(batches, steps):
        widths.append(train_step(learner, batch).samples)
        if widths[-1] == max(widths):
            widest = batch
    for width in ragged:
        if 0 < width < max(widths, default=0) and width not in widths:
            narrow = {name: tensor[:width] for name, tensor in widest.items()}
            widths.append(train_step(learner, narrow).samples)
    return widths


@contextmanager
def _undone(learner: Learner) -> Iterator[None]:
    """Restore network, optimizer, schedule and random number generators when the block ends, however it does.

    The snapshot is held on the host: on the device it would add three times the parameters' memory just
    when most is in use.
    """
    network = unwrapped(learner.model)
    was_training = network.training
    parts = [part for part in (network, learner.optimizer, learner.scheduler) if part is not None]
    states = [_host_clone(part.state_dict()) for part in parts]
    generators = _generator_states()
    try:
        yield
    finally:
        learner.optimizer.zero_grad(set_to_none=True)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        network.train(was_training)
        _set_generators(*generators)


def _host_clone(state: Any) -> Any:
    """Return a copy of a state dict whose tensors lie on the host and share no memory with it."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _host_clone(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_host_clone(value) for value in state)
    return copy.deepcopy(state)


def _generator_states() -> tuple[Any, Any, Tensor, list[Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _set_generators(python: Any, numpy: Any, cpu: Tensor, cuda: list[Tensor]) -> None:
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


def _batch_size(batches: DataLoader[Any]) -> int:
    assert batches.batch_size is not None, "the loader forms batches of a fixed size"  # noqa: S101
    return batches.batch_size
