"""Choosing a device and a backend, and refusing what no backend can serve."""

import pytest
import torch

from scaffold.errors import UserError
from scaffold.parallel import devices


@pytest.mark.parametrize(
    ("local", "visible", "device"), [(0, 0, "cpu"), (5, 0, "cpu"), (3, 1, "cuda:0"), (0, 4, "cuda:0"), (3, 4, "cuda:3")]
)
def test_device_of_a_rank(local, visible, device):
    """Hazard 51: with one device shown to each rank, the local rank is no index."""
    assert devices.pick_device(local, visible) == torch.device(device)


def test_a_rank_without_a_device_is_refused():
    """Hazard 51: CUDA's own message names an ordinal, not the rank count to mend."""
    with pytest.raises(UserError, match="local rank 4 has no device: 4 CUDA devices"):
        devices.pick_device(4, 4)


def test_two_ranks_on_one_device_are_refused_but_equal_ids_on_two_hosts_are_not():
    """NCCL hangs or fails obscurely when ranks share a device."""
    devices.refuse_shared_devices([("a", "gpu-1"), ("b", "gpu-1"), ("b", "gpu-2")])
    with pytest.raises(UserError, match="ranks 1 and 2 share one CUDA device of b"):
        devices.refuse_shared_devices([("a", "gpu-1"), ("b", "gpu-1"), ("b", "gpu-1")])


def test_the_backend_follows_the_devices_and_a_mixture_is_refused():
    """Hazard 51: nccl hard-coded; a node that lost its GPUs must not drag all others to the CPU."""
    assert devices.backend_for(["cpu", "cpu"]) == "gloo"
    assert devices.backend_for(["cuda", "cuda"]) == "nccl"
    with pytest.raises(UserError, match="rank 1 sees no CUDA device while rank 0 does"):
        devices.backend_for(["cuda", "cpu"])


def test_the_cpu_does_not_stand_in_for_a_gpu_unless_that_is_meant(monkeypatch):
    """A study for a GPU would train for hours on the CPU, and its figure of merit be another machine's."""
    for name in devices.HIDING:
        monkeypatch.delenv(name, raising=False)
    cpu = torch.device("cpu")
    devices.refuse_missing_gpu(cpu, gpus=0)
    devices.refuse_missing_gpu(torch.device("cuda", 0), gpus=1)
    with pytest.raises(UserError, match="sees no GPU here"):
        devices.refuse_missing_gpu(cpu, gpus=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UserError):
        devices.refuse_missing_gpu(cpu, gpus=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    devices.refuse_missing_gpu(cpu, gpus=1)
