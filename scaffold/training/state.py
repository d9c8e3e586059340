"""All that a training needs to continue: taken out of a learner, and put back into one."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scaffold.training.replicas import unwrapped
from scaffold.training.step import Learner


@dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
        tensors: by name ("model.head.weight", "optimizer.0.exp_avg", "random.torch").
        facts: everything else, JSON types only; ``epoch`` and ``val_loss_avg`` are required.
    """

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]

    @property
    def epoch(self) -> int:
        """Number of epochs that were finished."""
        return int(self.facts["epoch"])

    def on_host(self, used: State | None = None) -> State:
        """Return a copy that later training steps cannot change: clones, also of CPU tensors.

        Args:
            used: an earlier copy that is no longer needed, whose tensors are overwritten and returned where they
                fit: memory that is new to the process costs several times the copying.
        """
        old = {} if used is None else used.tensors
        tensors = {name: _copy(tensor.detach(), old.get(name)) for name, tensor in self.tensors.items()}
        return dataclasses.replace(self, tensors=tensors)


def _copy(tensor: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
    if onto is None or (onto.shape, onto.dtype, onto.stride()) != (tensor.shape, tensor.dtype, tensor.stride()):
        return tensor.to("cpu", copy=True)
    return onto.copy_(tensor)


def capture(learner: Learner, facts: dict[str, Any]) -> State:
    """Return the state of ``learner`` and of this process's random number generators, with ``facts`` added.

    The tensors are the learner's own, not copies.
    """
    tensors = {f"model.{name}": tensor for name, tensor in unwrapped(learner.model).state_dict().items()}
    optimizer = learner.optimizer.state_dict()
    scalars: dict[str, dict[str, Any]] = {}
    for index, entries in optimizer["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                scalars.setdefault(str(index), {})[name] = value
    python = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    tensors["random.torch"] = torch.get_rng_state()
    tensors["random.numpy"] = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    return State(
        tensors,
        {
            **facts,
            "optimizer": {"groups": optimizer["param_groups"], "scalars": scalars},
            "scheduler": None if learner.scheduler is None else learner.scheduler.state_dict(),
            "random": {
                "python": [python[0], list(python[1]), python[2]],
                "numpy": [numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]],
            },
        },
    )


def restore(learner: Learner, state: State) -> None:
    """Put ``state`` into ``learner`` and into this process's random number generators, bit for bit."""
    tensors, facts = state.tensors, state.facts
    network = unwrapped(learner.model)
    network.load_state_dict({name: tensors[f"model.{name}"] for name in network.state_dict()})
    entries: dict[int, dict[str, Any]] = {
        int(index): dict(values) for index, values in facts["optimizer"]["scalars"].items()
    }
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            entries.setdefault(int(index), {})[key] = tensor
    learner.optimizer.load_state_dict({"state": entries, "param_groups": facts["optimizer"]["groups"]})
    if learner.scheduler is not None:
        learner.scheduler.load_state_dict(facts["scheduler"])
    version, integers, gauss = facts["random"]["python"]
    random.setstate((version, tuple(integers), gauss))
    position, has_gauss, cached = facts["random"]["numpy"]
    words = tensors["random.numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, position, has_gauss, cached))
    torch.set_rng_state(tensors["random.torch"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
