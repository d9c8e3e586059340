"""One training step against its order of operations written out, and what it must not do."""

import pytest
import torch
from tiny_learner import WEIGHTS, batch_of, host_reads, tiny_learner

from scaffold.training import step as step_module
from scaffold.training.objective import objective
from scaffold.training.step import train_step


def parameters(learner):
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def test_step_is_loss_gradient_clip_update():
    """Clipping after the update, or the loss of the updated network, would train differently."""
    learner, other = tiny_learner(), tiny_learner()
    batch = batch_of(0, 1)
    result = train_step(learner, batch)

    expected = objective(other.model(batch["image"].double()), batch["mask"], WEIGHTS.double())
    expected.loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in other.model.parameters()]).norm()
    assert norm > 1, "the case must be one that is clipped"
    for parameter in other.model.parameters():
        parameter.grad /= norm + 1e-6
    other.optimizer.step()

    assert result.samples == 2
    torch.testing.assert_close(result.loss, expected.loss.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.dice, expected.soft_dice.detach().mean(), rtol=0, atol=1e-12)
    for ours, theirs in zip(parameters(learner), parameters(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_update_is_clipped():
    """Without clipping, the first steps' gradients of weighted cross-entropy throw the network off."""
    learner = tiny_learner(optimizer="SGD", starting_learning_rate=1.0)
    before = parameters(learner)
    train_step(learner, batch_of(0, 1))
    moved = torch.stack([(a - b).norm() for a, b in zip(parameters(learner), before, strict=True)]).norm()
    assert moved.item() == pytest.approx(1.0, rel=1e-4)


def test_repeated_steps_lower_the_loss():
    """The gradient's sign, at the very least."""
    learner = tiny_learner()
    losses = [train_step(learner, batch_of(0, 1)).loss.item() for _ in range(8)]
    assert losses[-1] < losses[0] - 0.05


def test_gradients_are_released():
    """Hazard 21: gradients that are zeroed instead keep a parameter's worth of memory through the next forward."""
    learner = tiny_learner()
    train_step(learner, batch_of(0, 1))
    assert all(parameter.grad is None for parameter in learner.model.parameters())


def test_results_keep_no_graph_alive():
    """Hazard 13: an attached Dice would hold every activation until the end of the epoch."""
    learner = tiny_learner()
    graphs = []
    plain = step_module.objective

    def watched(*arguments):
        graphs.append(plain(*arguments))
        return graphs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "objective", watched)
        result = train_step(learner, batch_of(0, 1))
    assert graphs[0].loss.requires_grad, "control: inside the step it is attached"
    assert not result.loss.requires_grad
    assert not result.dice.requires_grad


@pytest.mark.parametrize("amp", [False, True])
def test_step_never_waits_for_the_device(amp, monkeypatch):
    """Hazard 10: one read by the host in a step keeps it from running ahead of the device."""
    learner, batch = tiny_learner(torch.float32, amp), batch_of(0, 1)
    train_step(learner, batch)
    with host_reads(monkeypatch, learner) as reads:
        result = train_step(learner, batch)
        assert reads == []
        float(result.loss)
    assert "__float__" in reads, "control: a read is seen"
    assert "scalar" in reads


def test_bfloat16_is_for_the_network_alone():
    """Parameters or losses in bfloat16 stop moving when updates fall below 0.4 %."""
    learner = tiny_learner(torch.float32, amp=True)
    seen = []
    learner.model.encoder[1].register_forward_hook(lambda _, __, y: seen.append(y.dtype))
    result = train_step(learner, batch_of(0, 1))
    assert seen == [torch.bfloat16]
    assert result.loss.dtype == torch.float32
    assert {parameter.dtype for parameter in learner.model.parameters()} == {torch.float32}
    moments = [value for state in learner.optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in moments} == {torch.float32}


def test_images_are_placed_channels_last_and_labels_stay_narrow():
    """Contiguous images make every convolution transpose; int64 labels are 4 times the bytes on the bus."""
    image, labels = tiny_learner(torch.float32).compute.place(batch_of(0, 1))
    assert image.is_contiguous(memory_format=torch.channels_last_3d)
    assert (image.dtype, labels.dtype) == (torch.float32, torch.int16)


def test_missing_images_are_painted():
    """`storage.image: labels` must train on the very images that `dense` stores."""
    dense, labels = batch_of(0, 1), {"mask": batch_of(0, 1)["mask"].to(torch.uint8)}
    losses = [train_step(tiny_learner(), batch).loss for batch in (dense, labels)]
    assert torch.equal(*losses)
    blank = train_step(tiny_learner(), dense | {"image": torch.zeros_like(dense["image"])})
    assert blank.loss != losses[0], "control: the image shows in the loss"
