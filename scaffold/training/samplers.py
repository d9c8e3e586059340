"""Which samples a replica sees, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from scaffold.rng import key, permutation
from scaffold.training.loaders import end_with_trainer


class TrainingSampler(Sampler[int]):
    """Shuffles anew in each epoch and deals the samples out to the replicas, all equally many.

    The order is a pure function of the run's training seed and the epoch, so a resumed run continues in
    it, and runs with different seeds are independent. (LLNL's order has a seed of its own, always 0.)
    Where the replicas do not divide the samples, the first of the order are dealt a second time.

    Args:
        length: number of training samples, >= 1.
        replica: the replica that this rank belongs to.
        replicas: number of replicas.
        seed: the training seed.
    """

    def __init__(self, length: int, replica: int, replicas: int, seed: int) -> None:
        self.length, self.replica, self.replicas, self.seed = length, replica, replicas, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration follows."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = permutation(key(self.seed, "training order", self.epoch), self.length).tolist()
        return islice(cycle(order), self.replica, len(self) * self.replicas, self.replicas)

    def __len__(self) -> int:
        return -(-self.length // self.replicas)


class ValidationSampler(Sampler[int]):
    """A contiguous, unpadded share of the samples in fixed order; the first replicas take one more.

    A padded share would count some samples twice. A replica may get none.

    Args:
        length: number of validation samples.
        replica: the replica that this rank belongs to.
        replicas: number of replicas.
    """

    def __init__(self, length: int, replica: int, replicas: int) -> None:
        share, extra = divmod(length, replicas)
        start = replica * share + min(replica, extra)
        self.indices = range(start, start + share + (replica < extra))

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def loader(
    samples: Dataset[Any],
    sampler: Sampler[int],
    batch_size: int,
    workers: int,
    device: torch.device,
) -> DataLoader[Any]:
    """Return batches of ``samples`` in the sampler's order; the last may be smaller.

    Args:
        samples: a split of the data set.
        sampler: of this replica.
        batch_size: samples per batch.
        workers: processes that read ahead; 0 reads in this process.
        device: where the batches will go; decides whether host memory is pinned.
    """
    background: dict[str, Any] = {}
    if workers:
        # Not fork: this process may hold MPI, gloo and checkpoint threads, whose locks a fork would copy.
        background = {
            "persistent_workers": True, "prefetch_factor": 2,
            "multiprocessing_context": "forkserver", "worker_init_fn": end_with_trainer,
        }  # fmt: skip
    return DataLoader(
        samples, batch_size, sampler=sampler, num_workers=workers, pin_memory=device.type == "cuda", **background
    )
