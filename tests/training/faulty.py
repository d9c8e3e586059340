"""Runs a ``scaffold`` verb as ``python -m scaffold`` does, with a fault at a chosen training step.

FAULT="KIND RANK STEP": before its STEP-th timed training step (from 1), rank RANK
* ``kill``: kills itself as the kernel's memory killer would (SIGKILL);
* ``strand``: the same, and the others wait for it for ever, as for a kernel on their device;
* ``term``: gets SIGTERM, as from a scheduler;
* ``term-all``: as ``term``, and so does every process of its group, loaders and launcher included;
* ``insist``: gets SIGINT twice, as from a person who will not wait;
* ``raise``: fails with an error that the other ranks know nothing of;
* ``damage``: meets a damaged sample;
* ``nan``: goes on with a NaN in the weights;
* ``open``: whatever STEP, has a defect in opening the data set, whose outcome the ranks agree upon;
* ``dawdle``: takes STEP seconds longer to publish than collectives wait for (SCAFFOLD_TIMEOUT);
* ``watch``: no fault, and every rank: notes the sums of each step and each validation in
  ``watched.RANK.jsonl`` beside the run's output;
* ``full``: finds that its process may write no byte more (every write fails, as on a full disk).
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from scaffold.cli import main
from scaffold.errors import DamagedFileError
from scaffold.training import loop, predictions, worker

kind, rank, step = os.environ.get("FAULT", "none 0 0").split()
real_step, real_evaluate = loop.train_step, loop.evaluate
calls = 0


def train_step(learner, batch):
    global calls
    calls += 1
    if calls == int(step) and own_rank() == int(rank):
        befall(learner)
    elif calls == int(step) and kind == "strand":
        time.sleep(3600)
    result = real_step(learner, batch)
    if kind == "watch":
        note("train", result.samples, float(result.loss) * result.samples, float(result.dice) * result.samples)
    return result


def evaluate(learner, batches):
    score = real_evaluate(learner, batches)
    if kind == "watch":
        note("validate", score.samples, score.loss_sum, score.dice_sum)
    return score


def note(*entry):
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    with open(output.with_name(f"watched.{own_rank()}.jsonl"), "a") as file:
        file.write(json.dumps(entry) + "\n")


def own_rank():
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def befall(learner):
    import torch

    if kind in ("kill", "strand"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif kind == "term-all":
        os.killpg(os.getpgrp(), signal.SIGTERM)
    elif kind == "insist":
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    elif kind == "raise":
        raise RuntimeError("the dog ate my tensor")
    elif kind == "damage":
        raise DamagedFileError("masks.npy", "is truncated", "rebuild it")
    elif kind == "nan":
        with torch.no_grad():
            next(learner.model.parameters()).fill_(float("nan"))
    elif kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def open_samples(*arguments):
    if own_rank() == int(rank):
        raise KeyError("the dog ate my key")
    return real_samples(*arguments)


if kind == "open":
    real_samples, worker.Samples = worker.Samples, open_samples

if kind == "dawdle":
    os.environ["SCAFFOLD_TIMEOUT"] = "6"
    real_write = predictions.write
    predictions.write = lambda *arguments: (time.sleep(6 + int(step)), real_write(*arguments))

loop.train_step, loop.evaluate = train_step, evaluate

if __name__ == "__main__":
    sys.exit(main())
