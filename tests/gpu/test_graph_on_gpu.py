"""Real captures of training steps: the same bits as op by op, no waiting, no more memory."""

import dataclasses
import json

import pytest
import torch
import training_jobs
from torch.profiler import ProfilerActivity, profile

from scaffold.config import RunConfig
from scaffold.model.unet import build
from scaffold.training import graph, step
from scaffold.training.evaluation import evaluate
from scaffold.training.graph import StepGraphs
from scaffold.training.optimizer import build_optimizer, build_scheduler
from scaffold.training.step import Compute, Learner, train_step

CONFIG = RunConfig(problem_scale=5, unet_bottleneck_dim=3, unet_base_channels=16, n_categories=3, T_0=3)
DEVICE = torch.device("cuda")


def learner_of(graphs: bool, config: RunConfig = CONFIG) -> Learner:
    torch.manual_seed(1)
    model = build(config).to(DEVICE)
    optimizer = build_optimizer(config, model.parameters())
    learner = Learner(
        model, optimizer, build_scheduler(config, optimizer), torch.tensor([1.0, 20.0, 20.0, 20.0], device=DEVICE),
        Compute(DEVICE, torch.linspace(0, 1, 12, device=DEVICE).view(4, 3), amp=True),
    )  # fmt: skip
    return dataclasses.replace(learner, graphs=StepGraphs.of(model, optimizer, DEVICE)) if graphs else learner


def batches(*widths: int, dense: bool = True, edge: int = 32) -> list[dict[str, torch.Tensor]]:
    """Return random pinned batches."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for width in widths:
        mask = torch.randint(0, 4, (width, edge, edge, edge), generator=generator, dtype=torch.int16)
        batch = {"mask": mask if dense else mask.to(torch.uint8)}
        if dense:
            batch["image"] = torch.rand(width, 3, edge, edge, edge, generator=generator)
        made.append({name: tensor.pin_memory() for name, tensor in batch.items()})
    return made


def state_of(learner: Learner) -> list[torch.Tensor]:
    return [*learner.model.parameters(), *learner.optimizer.state_tensors()]


def epoch(learner: Learner, training, validation):
    """Train and validate as an epoch does; return what a row holds."""
    losses = [train_step(learner, batch).loss for batch in training]
    score = evaluate(learner, validation)
    if learner.scheduler is not None:
        learner.scheduler.step()
    return [loss.item() for loss in losses], score


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_replays_are_the_steps_bit_for_bit(checkpointing, dense):
    """85: over four epochs of 2, 2, 2, 2, 1 samples with a rate that changes from each to the next."""
    config = CONFIG.model_copy(update={"activation_checkpointing": checkpointing})
    training, validation = batches(2, 2, 2, 2, 1, dense=dense), batches(2, 1, dense=dense)
    told = []
    for graphs in (True, False):
        learner = learner_of(graphs, config)
        told.append(([epoch(learner, training, validation) for _ in range(4)], learner))
    (replayed, ours), (expected, plain) = told
    assert ours.graphs.status() == {"training": "captured", "validation": "captured"}
    assert plain.graphs.training.status.startswith("off")
    assert replayed == expected
    assert all(map(torch.equal, state_of(ours), state_of(plain)))
    constant = learner_of(False, config.model_copy(update={"disable_scheduler": True}))
    assert [epoch(constant, training, validation) for _ in range(4)] != expected, "control: the rate shows"


def test_replays_never_wait_for_the_device():
    """78: a wait hidden in the step would keep the host from running ahead."""
    learner, data = learner_of(True), batches(2, 2, 1, 2, 1)
    for batch in data[:3]:
        train_step(learner, batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [train_step(learner, batch) for batch in data[3:]]
        with pytest.raises(RuntimeError, match="synchroniz"):
            results[-1].loss.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_that_waits_is_taken_op_by_op(monkeypatch, caplog):
    """A step that cannot be captured must still be taken, once, and validation captured all the same."""
    real = step.objective

    def waits(*arguments):
        result = real(*arguments)
        if result.loss.requires_grad:
            result.loss.item()
        return result

    training, validation = batches(2, 2, 1), batches(2)
    with monkeypatch.context() as patch:
        patch.setattr(step, "objective", waits)
        told = []
        for graphs in (True, False):
            learner = learner_of(graphs)
            told.append(([epoch(learner, training, validation) for _ in range(2)], learner))
    (ours, learner), (expected, plain) = told
    assert ours == expected
    assert all(map(torch.equal, state_of(learner), state_of(plain)))
    assert learner.graphs.training.status.startswith("off: ")
    assert learner.graphs.validation.status == "captured"
    assert len([record for record in caplog.records if graph.SWITCH in record.message]) == 1


def test_graphs_take_the_memory_of_one_step():
    """Activations of the trial beside the graph's would not fit at scale 8; validation's own trial is a small part."""
    config = RunConfig(problem_scale=6, unet_bottleneck_dim=3, unet_base_channels=32, n_categories=3)
    reserved = []
    for graphs in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        learner, data = learner_of(graphs, config), batches(2, 2, edge=64)
        for _ in range(2):
            for batch in data:
                train_step(learner, batch)
            evaluate(learner, data)
        reserved.append(torch.cuda.max_memory_reserved() - before)
        if graphs:
            assert learner.graphs.status() == {"training": "captured", "validation": "captured"}
        del learner
    assert reserved[1] < 1.95 * reserved[0]


def test_released_graphs_give_their_memory_back():
    """The predictions after a training need it."""
    learner = learner_of(True, RunConfig(problem_scale=6, unet_bottleneck_dim=3, unet_base_channels=32, n_categories=3))
    train_step(learner, batches(2, edge=64)[0])
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    learner.graphs.release()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held - 2**28


def test_a_profile_shows_the_kernels_of_replays():
    """A trace without them would be of no use."""
    learner, (batch,) = learner_of(True), batches(2)
    train_step(learner, batch)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        train_step(learner, batch)
        torch.cuda.synchronize()
    names = {event.name for event in traced.events() if event.device_type == torch.autograd.DeviceType.CUDA}
    assert any("update_kernel" in name for name in names), names


def test_whole_trainings_are_the_same_with_and_without_graphs(data, tmp_path, monkeypatch):
    """85: through warm-up, checkpoints and a ragged last batch; and without a warm-up the first step captures."""
    outputs = {}
    for name, switch, options in (
        ("replayed", "1", {}), ("plain", "0", {}), ("cold", "1", {"set": "warmup_batches=0"})
    ):  # fmt: skip
        monkeypatch.setenv(graph.SWITCH, switch)
        outputs[name] = tmp_path / name
        done = training_jobs.train(data, outputs[name], launcher="none", **options)
        assert done.returncode == 0, done.stderr
    captured = {"training": "captured", "validation": "captured"}
    found = {name: json.loads((output / "result.json").read_text()) for name, output in outputs.items()}
    assert [found[name]["cuda_graph"] for name in ("replayed", "cold")] == [captured] * 2
    assert graph.SWITCH in found["plain"]["cuda_graph"]["training"]
    assert training_jobs.rows(outputs["replayed"]) == training_jobs.rows(outputs["plain"])
    assert training_jobs.rows(outputs["replayed"]) == training_jobs.rows(outputs["cold"])


def test_a_killed_training_continues_to_the_same_result(data, tmp_path):
    """85: the restored state must lie where the new graphs look for it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert training_jobs.train(data, whole, launcher="none").returncode == 0
    assert training_jobs.train(data, killed, launcher="none", fault="kill 0 30").returncode != 0
    done = training_jobs.train(data, killed, launcher="none")
    assert done.returncode == 0, done.stderr
    assert training_jobs.rows(killed) == training_jobs.rows(whole)
    assert training_jobs.result(killed)["cuda_graph"]["training"] == "captured"
    assert len(training_jobs.result(killed)["attempts"]) == 2
