"""The training step and whole trainings on a GPU: no host reads, the same bits each time, one rank a device."""

import pytest
import torch
import torch.nn.functional as F
import training_jobs

from scaffold.config import RunConfig
from scaffold.kernels import segmentation_sums
from scaffold.model.unet import build
from scaffold.training.evaluation import evaluate
from scaffold.training.optimizer import build_optimizer, build_scheduler
from scaffold.training.step import Compute, Learner, train_step

CONFIG = RunConfig(problem_scale=5, unet_bottleneck_dim=3, unet_base_channels=16, n_categories=3)


def learner_on_gpu() -> Learner:
    torch.manual_seed(1)
    device = torch.device("cuda")
    model = build(CONFIG).to(device)
    optimizer = build_optimizer(CONFIG, model.parameters())
    palette = torch.rand(4, 3, device=device)
    weights = torch.tensor([1.0, 20.0, 20.0, 20.0], device=device)
    return Learner(model, optimizer, build_scheduler(CONFIG, optimizer), weights, Compute(device, palette, amp=True))


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    """Return random batches in pinned memory, as a loader hands them out."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "image": torch.rand(1, 3, 32, 32, 32, generator=generator).pin_memory(),
            "mask": torch.randint(0, 4, (1, 32, 32, 32), generator=generator, dtype=torch.int16).pin_memory(),
        }
        for _ in range(count)
    ]


@pytest.fixture
def forbid_waiting():
    """Make every wait of the host for the device an error, once the first launches are done."""

    def forbid() -> None:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")

    yield forbid
    torch.cuda.set_sync_debug_mode("default")


def test_steps_never_wait_for_the_device(forbid_waiting):
    """Hazard 10: a hidden host read in the step would keep the host from running ahead."""
    learner, data = learner_on_gpu(), batches(4)
    train_step(learner, data[0])
    forbid_waiting()
    results = [train_step(learner, batch) for batch in data[1:]]
    with pytest.raises(RuntimeError, match="synchroniz"):
        results[-1].loss.item()


def test_validation_reads_the_device_once(forbid_waiting, monkeypatch):
    """Hazard 10: one read a batch would stall validation; the one at its end is allowed."""
    learner, data = learner_on_gpu(), batches(3)
    evaluate(learner, data)
    reads = []
    plain = torch.Tensor.tolist

    def counted(tensor):
        torch.cuda.set_sync_debug_mode("default")
        reads.append(tensor.shape)
        return plain(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    forbid_waiting()
    evaluate(learner, data)
    assert len(reads) == 1


def test_steps_repeat_bit_for_bit():
    """Two sites, or two attempts, could not compare curves otherwise."""
    weights = []
    for _ in range(2):
        learner = learner_on_gpu()
        for batch in batches(5):
            train_step(learner, batch)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()]))
    assert torch.equal(*weights)


def test_loss_repeats_bit_for_bit_at_a_size_where_atomics_do_not():
    """Hazard 9: the fused sum of nll_loss adds with atomics, in an order that varies above some 10^6 voxels."""
    generator = torch.Generator(device="cuda").manual_seed(5)
    logits = torch.randn(1, 6, 192, 192, 192, device="cuda", generator=generator)
    labels = torch.randint(0, 6, (1, 192, 192, 192), device="cuda", generator=generator)
    weights = torch.rand(6, device="cuda", generator=generator)
    log_p = F.log_softmax(logits, dim=1)
    fused = {F.nll_loss(log_p, labels, weights, reduction="sum").item() for _ in range(100)}
    ours = {tuple(segmentation_sums(logits, labels, weights).flatten().tolist()) for _ in range(50)}
    assert len(fused) > 1, "control: at this size the fused sum varies"
    assert len(ours) == 1


def test_training_repeats_bit_for_bit_and_says_where_it_ran(data, tmp_path):
    """A figure of merit names its device, and a repeated training has the same curve."""
    outputs = [tmp_path / name for name in ("first", "second")]
    for output in outputs:
        done = training_jobs.train(data, output, launcher="none")
        assert done.returncode == 0, done.stderr
    assert training_jobs.rows(outputs[0]) == training_jobs.rows(outputs[1])
    assert training_jobs.result(outputs[0])["world"]["device"] == torch.cuda.get_device_name()
    assert training_jobs.result(outputs[0])["minibatch_time_s"] > 0


def test_ranks_get_a_device_each_or_are_refused(data, tmp_path):
    """Two ranks that share a GPU would measure each other; NCCL would hang on them."""
    done = training_jobs.train(data, tmp_path, ranks=2, launcher="torchrun")
    if torch.cuda.device_count() >= 2:
        assert done.returncode == 0, done.stderr
        assert training_jobs.result(tmp_path)["world"]["backend"] == "nccl"
    else:
        assert done.returncode != 0
        assert "share one CUDA device" in done.stderr
        assert not list(tmp_path.iterdir())


def test_strict_determinism_trains(data, tmp_path):
    """more_determinism must not stop at a kernel that PyTorch has no deterministic form of (max-pooling's gradient)."""
    done = training_jobs.train(data, tmp_path, launcher="none", set="more_determinism=true")
    assert done.returncode == 0, done.stderr
