"""Replicas on several ranks, started through mpiexec."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import mpiexec
from tiny_learner import WEIGHTS, batch_of, tiny_learner

from scaffold.training.objective import objective
from scaffold.training.optimizer import update
from scaffold.training.replicas import unwrapped
from scaffold.training.step import train_step

SCRIPT = Path(__file__).with_name("replicated_ranks.py")


def run(ranks, case):
    """Return what each rank reported."""
    command = [mpiexec(), "-n", str(ranks), sys.executable, SCRIPT, case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.multirank
def test_two_ranks_equal_the_average_of_two_single_sample_losses():
    """Hazard 12: a wrong factor trains with another learning rate; batch 2 normalises the cross-entropy otherwise."""
    average, together = tiny_learner(), tiny_learner()
    for step in range(5):
        samples = (2 * step, 2 * step + 1)
        for sample in samples:
            batch = batch_of(sample)
            loss = objective(average.model(batch["image"].double()), batch["mask"], WEIGHTS.double()).loss
            (loss / 2).backward()
        update(average.optimizer)
        average.optimizer.zero_grad()
        train_step(together, batch_of(*samples))

    reports = run(2, "average")
    assert all(report["replicated"] for report in reports)
    assert reports[0]["parameters"] == reports[1]["parameters"]
    ranks = torch.tensor([float.fromhex(text) for text in reports[0]["parameters"]], dtype=torch.float64)
    assert (ranks - flat(average.model)).abs().max() <= 1e-10
    assert (ranks - flat(together.model)).abs().max() > 1e-6, "control: one batch of 2 is something else"


@pytest.mark.multirank
def test_three_ranks_add_gradients_in_the_same_order_after_a_restart():
    """DDP's change of bucket layout after its first step would make a resumed run differ in the last bits."""
    for report in run(3, "restart"):
        assert report["resumed"] == report["whole"]
        assert report["unprimed"] != report["whole"], "control: replicas whose first step is a real one differ"


def test_a_bare_network_is_its_own_replica():
    """One rank trains without the wrapper."""
    model = tiny_learner().model
    assert unwrapped(model) is model
