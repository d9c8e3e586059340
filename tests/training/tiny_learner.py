"""A problem of a few thousand voxels, and ways to watch what a step does, shared by the tests of training."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from scaffold.config import RunConfig
from scaffold.model.unet import build
from scaffold.parallel.team import Team
from scaffold.training.optimizer import build_optimizer, build_scheduler
from scaffold.training.samplers import TrainingSampler, ValidationSampler, loader
from scaffold.training.step import Compute, Learner

CPU = torch.device("cpu")
CONFIG = RunConfig(
    problem_scale=4, unet_bottleneck_dim=3, unet_base_channels=8, n_categories=2, n_instances_used_per_fractal=6
)
WEIGHTS = torch.tensor([1.0, 20.0, 20.0])


class TinySamples(Dataset[dict[str, torch.Tensor]]):
    """Random volumes of edge 8 with 2 categories, each a pure function of its index."""

    n_classes = 3
    palette = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.1, 0.3], [0.2, 0.8, 0.5]])

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def mask(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        occupied = torch.rand(8, 8, 8, generator=generator) < 0.05
        return (occupied * torch.randint(1, 3, (8, 8, 8), generator=generator)).to(torch.int16)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = self.mask(index)
        return {"mask": mask, "image": self.palette[mask.long()].movedim(-1, 0).contiguous()}


def batch_of(*indices: int) -> dict[str, torch.Tensor]:
    """Return these samples as one batch."""
    return torch.utils.data.default_collate([TinySamples(100)[index] for index in indices])


def tiny_learner(dtype: torch.dtype = torch.float64, amp: bool = False, **keys: Any) -> Learner:
    """Return a seeded learner of the tiny problem."""
    config = CONFIG.model_copy(update=keys)
    torch.manual_seed(1)
    model = build(config).to(dtype)
    optimizer = build_optimizer(config, model.parameters())
    compute = Compute(CPU, TinySamples.palette, amp, dtype)
    return Learner(model, optimizer, build_scheduler(config, optimizer), WEIGHTS.to(dtype), compute)


def training_batches(length: int, size: int, replica: int = 0, replicas: int = 1) -> DataLoader[Any]:
    """Return a training loader."""
    return loader(TinySamples(length), TrainingSampler(length, replica, replicas, seed=7), size, 0, CPU)


def validation_batches(length: int, size: int, replica: int = 0, replicas: int = 1) -> DataLoader[Any]:
    """Return a validation loader."""
    return loader(TinySamples(length), ValidationSampler(length, replica, replicas), size, 0, CPU)


class ThreadTeam(Team):
    """Ranks that are threads of this process; :meth:`run` gives each rank's result or exception."""

    def __init__(self, rank: int, size: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._slots, self._barrier = rank, size, slots, barrier

    def exchange(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(20)
        everyone = list(self._slots)
        self._barrier.wait(20)
        return everyone

    @classmethod
    def run(cls, size: int, function: Any) -> list[Any]:
        slots, barrier = [None] * size, threading.Barrier(size)
        results: list[Any] = [None] * size

        def work(rank: int) -> None:
            try:
                results[rank] = function(cls(rank, size, slots, barrier))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


class _ScalarReads(TorchDispatchMode):
    def __init__(self, reads: list[str], ignored: set[int]) -> None:
        super().__init__()
        self.reads, self.ignored = reads, ignored

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        scalar = function._overloadpacket is torch.ops.aten._local_scalar_dense
        if scalar and args[0].data_ptr() not in self.ignored:
            self.reads.append("scalar")
        return function(*args, **(kwargs or {}))


@contextmanager
def host_reads(monkeypatch, learner):
    """Record every read of a tensor by the host: what would wait for a GPU.

    Adam's step counters are not meant: they lie on the host on every machine.
    """
    reads: list[str] = []
    counters = {state["step"].data_ptr() for state in learner.optimizer.state.values()}
    with monkeypatch.context() as patch, _ScalarReads(reads, counters):
        for name in ("tolist", "cpu", "numpy", "item", "__bool__", "__float__", "__int__", "nonzero"):
            plain = getattr(torch.Tensor, name)

            def spy(self, *args, _name=name, _plain=plain, **kwargs):
                if self.data_ptr() not in counters:
                    reads.append(_name)
                return _plain(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, spy)
        yield reads
