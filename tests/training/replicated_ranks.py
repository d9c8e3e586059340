"""What the ranks of test_replicas.py run, under mpiexec: trains replicas and prints what came out as JSON.

mpiexec -n N python replicated_ranks.py {average,restart}
"""

from __future__ import annotations

import copy
import json
import os
import socket
import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from tiny_learner import batch_of, tiny_learner

from scaffold.kernels import ladder
from scaffold.training.replicas import replicate, unwrapped
from scaffold.training.step import Learner, train_step

WORLD = MPI.COMM_WORLD


def join() -> dist.ProcessGroup:
    """Return the gloo group of all ranks; rank 0 hosts the store on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = WORLD.bcast(listener.getsockname()[1])
    listener.close()
    WORLD.barrier()
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=WORLD.rank, world_size=WORLD.size)
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def replicated(group: dist.ProcessGroup, dtype: torch.dtype, **keys: Any) -> Learner:
    """Return the tiny learner with its model replicated; other ranks start from other weights."""
    learner = tiny_learner(dtype, **keys)
    if WORLD.rank:
        torch.nn.init.normal_(learner.model.head.weight)
    replica = replicate(learner.model, group)
    assert not ladder.served(), "the record of kernels would have those of a pass that is no step"
    return replace(learner, model=replica)


def digest(learner: Learner) -> list[str]:
    """Return all parameters as exact text."""
    return [
        value.hex() for p in unwrapped(learner.model).parameters() for value in p.detach().double().flatten().tolist()
    ]


def average(group: dist.ProcessGroup) -> dict[str, Any]:
    """Five steps in float64, each rank on its own sample."""
    learner = replicated(group, torch.float64)
    for step in range(5):
        train_step(learner, batch_of(WORLD.size * step + WORLD.rank))
    wrapped = isinstance(learner.model, torch.nn.parallel.DistributedDataParallel)
    return {"parameters": digest(learner), "replicated": wrapped}


def restart(group: dist.ProcessGroup) -> dict[str, Any]:
    """Four steps at a stretch, and with a restart after two, in float32."""
    whole = replicated(group, torch.float32)
    steps = [batch_of(WORLD.size * step + WORLD.rank) for step in range(4)]
    for batch in steps[:2]:
        train_step(whole, batch)
    states = [whole.optimizer.state_dict(), unwrapped(whole.model).state_dict()]
    resumed = [tiny_learner(torch.float32) for _ in range(2)]
    for learner in resumed:
        for part, state in zip((learner.optimizer, learner.model), states, strict=True):
            part.load_state_dict(copy.deepcopy(state))
    primed = replace(resumed[0], model=replicate(resumed[0].model, group))
    unprimed = replace(resumed[1], model=torch.nn.parallel.DistributedDataParallel(resumed[1].model))
    for batch in steps[2:]:
        for learner in (whole, primed, unprimed):
            train_step(learner, batch)
    return {"whole": digest(whole), "resumed": digest(primed), "unprimed": digest(unprimed)}


def main() -> None:
    torch.set_num_threads(1)
    group = join()
    results = WORLD.gather({"average": average, "restart": restart}[sys.argv[1]](group))
    if WORLD.rank == 0:
        print(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    MPI.Finalize()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
