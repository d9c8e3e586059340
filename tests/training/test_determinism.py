"""What makes one training repeat another."""

import random

import numpy as np
import pytest
import torch

from scaffold.training.determinism import seed_everything, set_determinism


@pytest.fixture
def settings():
    """The settings of PyTorch, put back afterwards."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    yield cudnn
    cudnn.benchmark, cudnn.deterministic = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("strict", [False, True])
def test_algorithms_are_not_chosen_by_timing(settings, monkeypatch, strict):
    """Chosen by timing, two attempts of one training would compute with different algorithms."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    settings.benchmark, settings.deterministic = True, False
    set_determinism(strict)
    assert (settings.benchmark, settings.deterministic) == (False, True)
    assert torch.are_deterministic_algorithms_enabled() is strict
    assert torch.is_deterministic_algorithms_warn_only_enabled(), "a kernel without such a form must not end a training"


def test_every_generator_is_seeded():
    """What a library draws from any of them would else differ from run to run."""

    def draws(seed):
        seed_everything(seed)
        return random.random(), np.random.random(), torch.rand(()).item()

    first, other = draws(2**63 - 1), draws(7)
    assert draws(2**63 - 1) == first
    assert all(one != two for one, two in zip(first, other, strict=True))
