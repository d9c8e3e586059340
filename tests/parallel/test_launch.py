"""Choosing a device and a backend, and refusing a wrong world, without starting ranks."""

import pytest
import torch

from scaffold.errors import ExitCode, UserError
from scaffold.parallel import launch


@pytest.fixture
def clean(monkeypatch):
    """Take away what a launcher around the tests may have set."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield monkeypatch
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("local", "visible", "device"), [(0, 0, "cpu"), (5, 0, "cpu"), (3, 1, "cuda:0"), (0, 4, "cuda:0"), (3, 4, "cuda:3")]
)
def test_device_of_a_rank(local, visible, device):
    """Hazard 51: with one device shown to each rank, the local rank is no index."""
    assert launch.pick_device(local, visible) == torch.device(device)


def test_a_rank_without_a_device_is_refused():
    """Hazard 51: CUDA's own message names an ordinal, not the rank count to mend."""
    with pytest.raises(UserError, match="local rank 4 has no device: 4 CUDA devices"):
        launch.pick_device(4, 4)


def test_two_ranks_on_one_device_are_refused_but_equal_ids_on_two_hosts_are_not():
    """NCCL hangs or fails obscurely when ranks share a device."""
    launch.refuse_shared_devices([("a", "gpu-1"), ("b", "gpu-1"), ("b", "gpu-2")])
    with pytest.raises(UserError, match="ranks 1 and 2 share one CUDA device of b"):
        launch.refuse_shared_devices([("a", "gpu-1"), ("b", "gpu-1"), ("b", "gpu-1")])


def test_the_backend_follows_the_devices_and_a_mixture_is_refused():
    """Hazard 51: nccl hard-coded; a node that lost its GPUs must not drag all others to the CPU."""
    assert launch.backend_for(["cpu", "cpu"]) == "gloo"
    assert launch.backend_for(["cuda", "cuda"]) == "nccl"
    with pytest.raises(UserError, match="rank 1 sees no CUDA device while rank 0 does"):
        launch.backend_for(["cuda", "cpu"])


def test_a_single_process_needs_no_group(clean):
    """A laptop without MPI or a network trains too."""
    context = launch.join(1, threads=2)
    assert (context.rank, context.size, context.backend, context.control_group) == (0, 1, "none", None)
    assert context.threads == torch.get_num_threads() == 2
    assert context.exchange("x") == ["x"]


def test_threads_are_explicit(clean):
    """Under mpiexec PyTorch silently takes one thread; a measurement must know what it ran with."""
    clean.setenv("OMP_NUM_THREADS", "3")
    assert launch.join(1).threads == torch.get_num_threads() == 3
    clean.setenv("OMP_NUM_THREADS", "")
    assert launch.join(1).threads >= 1


def test_torchrun_with_another_size_is_refused_before_any_connection(clean):
    """Hazard 52: each process would be its own rank 0 of 1."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "9"}.items():
        clean.setenv(name, value)
    with pytest.raises(UserError, match=r"WORLD_SIZE=4, but --ranks 2.*torchrun --nproc-per-node 2") as caught:
        launch.join(2)
    assert caught.value.exit_code == ExitCode.USER_ERROR


def test_a_wrong_timeout_is_refused_by_name(clean):
    """A typing error must not become an endless or instant time limit."""
    clean.setenv(launch.TIMEOUT_VARIABLE, "5m")
    with pytest.raises(UserError, match="SCAFFOLD_TIMEOUT='5m'"):
        launch.timeout()
    clean.setenv(launch.TIMEOUT_VARIABLE, "60")
    assert launch.timeout().total_seconds() == 60


def test_what_a_lost_rank_looks_like():
    """A peer's death is no defect of ours: the exit code says to run again."""
    gloo = RuntimeError("[/x/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
    assert launch.is_lost_rank(gloo)
    assert not launch.is_lost_rank(RuntimeError("shapes differ"))
    assert launch.lost_rank(gloo).exit_code == ExitCode.RUN_AGAIN
