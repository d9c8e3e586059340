"""What no kernel of ours can take, whatever the operation."""

import pytest
import torch
from torch import nn

from scaffold.kernels import refusals


@pytest.mark.parametrize(
    ("on_gpu", "interpreted", "triton", "reason"),
    [
        (True, False, True, None),
        (False, True, True, None),
        (False, False, True, "not on a CUDA or HIP device"),
        (True, False, False, "Triton is not installed"),
        (False, True, False, "Triton is not installed"),
    ],
)
def test_where_triton_runs(monkeypatch, on_gpu, interpreted, triton, reason):
    """A kernel that is offered a CPU tensor reads the host's addresses on the device."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", on_gpu)
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    monkeypatch.setattr(refusals, "_HAS_TRITON", triton)
    found = refusals.no_triton(torch.ones(1), nn.Parameter(torch.ones(1)), None)
    assert found is reason if reason is None else reason in found


def test_one_tensor_on_the_cpu_is_enough(monkeypatch):
    """A parameter that was left behind there is no reason for a fault of the device."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.dim() > 0))
    monkeypatch.setattr(refusals, "_HAS_TRITON", True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert refusals.no_triton(torch.ones(1), torch.ones(())) == "a tensor is not on a CUDA or HIP device"
    assert refusals.no_triton(torch.ones(1), torch.ones(1)) is None
