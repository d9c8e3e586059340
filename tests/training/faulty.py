"""Runs a ``scaffold`` verb as ``python -m scaffold`` does, with a fault at a chosen training step.

FAULT="KIND RANK STEP": before its STEP-th timed training step (from 1), rank RANK
* ``kill``: kills itself as the kernel's memory killer would (SIGKILL);
* ``term``: gets SIGTERM, as from a scheduler;
* ``term-all``: as ``term``, and so does every process of its group, loaders and launcher included;
* ``raise``: fails with an error that the other ranks know nothing of;
* ``damage``: meets a damaged sample;
* ``nan``: goes on with a NaN in the weights;
* ``full``: finds that its process may write no byte more (every write fails, as on a full disk).
"""

import os
import resource
import signal
import sys

from scaffold.cli import main
from scaffold.errors import DamagedFileError
from scaffold.training import loop

kind, rank, step = os.environ.get("FAULT", "none 0 0").split()
real_step = loop.train_step
calls = 0


def train_step(learner, batch):
    global calls
    calls += 1
    if calls == int(step) and own_rank() == int(rank):
        befall(learner)
    return real_step(learner, batch)


def own_rank():
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def befall(learner):
    import torch

    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif kind == "term-all":
        os.killpg(os.getpgrp(), signal.SIGTERM)
    elif kind == "raise":
        raise RuntimeError("the dog ate my tensor")
    elif kind == "damage":
        raise DamagedFileError("masks.npy", "is truncated", "rebuild it")
    elif kind == "nan":
        with torch.no_grad():
            next(learner.model.parameters()).fill_(float("nan"))
    elif kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


loop.train_step = train_step

if __name__ == "__main__":
    sys.exit(main())
