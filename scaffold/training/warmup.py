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
        validation_widths: of each validation batch, in order.
    """

    widths: list[int]
    validation_widths: list[int]


def warm_up(
    learner: Learner,
    training: DataLoader[Any],
    validation: DataLoader[Any],
    steps: int,
    team: Team,
) -> WarmUp:
    """Run real training and validation steps, then restore everything bit for bit. Collective.

    Besides the first ``steps`` batches, one of the size of a last, smaller batch is run. In training all
    ranks have equally many samples, so they take the same number of steps.

    Args:
        learner: as it will be trained.
        training: this replica's training batches.
        validation: this replica's validation batches.
        steps: greatest number of batches of each; 0 skips the warm-up.
        team: all ranks of the training.
    """
    if steps <= 0:
        return WarmUp([], [])
    for part in (training, validation):
        if hasattr(part.sampler, "set_epoch"):
            part.sampler.set_epoch(0)
    widths: list[int] = []
    validation_widths: list[int] = []
    with _undone(learner):
        unwrapped(learner.model).train()
        for batch in _each_width(training, steps, widths):
            train_step(learner, batch)
        evaluate(learner, _each_width(validation, steps, validation_widths))
    team.barrier()
    return WarmUp(widths, validation_widths)


def _each_width(batches: DataLoader[Any], steps: int, widths: list[int]) -> Iterator[Batch]:
    """Yield the first ``steps`` batches, and one as small as the last if that was not among them.

    Their sizes are appended to ``widths``.
    """
    widest: Batch = {}
    for batch in islice(batches, steps):
        widths.append(len(batch["mask"]))
        if widths[-1] == max(widths):
            widest = batch
        yield batch
    assert batches.batch_size is not None, "the loader forms batches of a fixed size"  # noqa: S101
    last = len(batches.sampler) % batches.batch_size  # type: ignore[arg-type]
    if last and widths and last not in widths:
        widths.append(last)
        yield {name: tensor[:last] for name, tensor in widest.items()}


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
