"""Triton launches on the current device: whoever launches must make that the device of the tensors."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from scaffold.kernels.adam import op as adam
from scaffold.kernels.adam.reference import Rate
from scaffold.kernels.group_norm import launch


@pytest.fixture
def regions(monkeypatch):
    """Collect the tensors by which launch regions choose their device; nothing is launched."""
    found = []
    for module in (adam, launch):
        monkeypatch.setattr(module, "launch_region", lambda op, on=None: found.append(on) or nullcontext())
    monkeypatch.setattr(launch, "run", lambda *arguments: None)
    return found


def test_group_norm_launches_where_its_input_lies(regions):
    """On the second GPU of a process the kernel would read addresses of the first."""
    x, weight, bias = torch.ones(1, 4, 2, 2, 2), torch.ones(4), torch.ones(4)
    moments = launch.moments(x, 2)
    statistics = launch.normalise(x, weight, bias, moments, 2, 1e-5).statistics
    incoming = launch.Incoming(dy=x)
    sums = launch.gradient_sums(incoming, x, weight, bias, statistics, 2)
    launch.input_gradient(incoming, x, weight, bias, statistics, sums, 2)
    assert [on is x for on in regions] == [True] * 4


def test_adam_launches_where_its_tensors_lie(regions):
    """The same; all its tensors lie where the rate does, or it declines."""
    rate = Rate(0.1, torch.tensor(0.1))
    workspace = SimpleNamespace(step=lambda *arguments: None)
    adam._with_kernels((), rate, None, SimpleNamespace(of=lambda tensors: workspace))
    assert [on is rate.device for on in regions] == [True]
