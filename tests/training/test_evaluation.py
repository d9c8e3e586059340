"""The validation score."""

import pytest
import torch
from tiny_learner import WEIGHTS, TinySamples, batch_of, host_reads, tiny_learner, validation_batches

from scaffold.training.evaluation import evaluate
from scaffold.training.metrics import foreground_dice, hard_dice_sums
from scaffold.training.objective import objective


class Oracle(torch.nn.Module):
    """Predicts the classes of the painted image, but those of the first ``wrong`` samples it sees as background."""

    def __init__(self, wrong=0):
        super().__init__()
        self.wrong, self.seen = wrong, 0

    def forward(self, image):
        distance = (image[:, None] - TinySamples.palette.to(image)[None, :, :, None, None, None]).square().sum(2)
        logits = -20 * distance
        for n in range(len(image)):
            if self.seen < self.wrong:
                logits[n, 0] += 100
            self.seen += 1
        return logits


def with_model(model, weights=None):
    learner = tiny_learner()
    weights = learner.weights if weights is None else weights
    return type(learner)(model, learner.optimizer, None, weights, learner.compute)


def test_perfect_network_scores_one():
    """Hazard 1: the target 1.0 must be reachable."""
    result = evaluate(with_model(Oracle()), validation_batches(5, 2))
    assert result.dice_sum == 5.0
    assert result.samples == 5


def test_uneven_split_over_replicas_counts_each_sample_once():
    """Hazards 3, 5: three samples with Dice 1, 1, 0 on two replicas give 2/3, not 3/4 nor rank 0's value."""
    first = evaluate(with_model(Oracle()), validation_batches(3, 1, 0, 2))
    second = evaluate(with_model(Oracle(wrong=1)), validation_batches(3, 1, 1, 2))
    assert (first.samples, second.samples) == (2, 1)
    dice = (first.dice_sum + second.dice_sum) / (first.samples + second.samples)
    assert dice == pytest.approx(2 / 3, abs=1e-5)


def test_a_smaller_last_batch_does_not_weigh_more():
    """Hazard 7: averaged per batch, samples 0..1 and 2 would weigh 1/4, 1/4 and 1/2."""
    learner = tiny_learner()
    result = evaluate(learner, validation_batches(3, 2))
    dice, losses = [], []
    for indices in ((0, 1), (2,)):
        batch = batch_of(*indices)
        with torch.no_grad():
            logits = learner.model(batch["image"].double())
        dice += foreground_dice(hard_dice_sums(logits, batch["mask"])).mean(1).tolist()
        losses.append(objective(logits, batch["mask"], WEIGHTS).loss.item() * len(indices))
    assert result.dice_sum == pytest.approx(sum(dice), rel=1e-12)
    assert result.loss_sum == pytest.approx(sum(losses), rel=1e-12)


def test_empty_split_gives_zeros():
    """Hazard 18: a replica without samples takes part with nothing."""
    assert evaluate(tiny_learner(), validation_batches(1, 1, 1, 2)) == (0.0, 0.0, 0)
    empty = {name: tensor[:0] for name, tensor in batch_of(0).items()}
    score = evaluate(tiny_learner(), [batch_of(0)])
    assert evaluate(tiny_learner(), [empty, batch_of(0)]) == score
    assert score.samples == 1


@pytest.mark.parametrize("training", [True, False])
def test_network_is_left_as_it_was(training):
    """Validation must not train, nor leave the network in another mode; also when it fails."""
    learner = tiny_learner()
    learner.model.train(training)
    before = [parameter.clone() for parameter in learner.model.parameters()]
    modes = []
    learner.model.register_forward_hook(lambda module, _, y: modes.append((module.training, y.requires_grad)))
    evaluate(learner, validation_batches(2, 2))
    assert modes == [(False, False)]
    assert learner.model.training is training
    assert all(map(torch.equal, before, learner.model.parameters()))
    with pytest.raises(KeyError):
        evaluate(learner, [{"image": None}])
    assert learner.model.training is training


def test_one_read_by_the_host_for_any_number_of_batches(monkeypatch):
    """Hazard 10: a read per batch keeps the host from running ahead."""
    learner, counts = tiny_learner(), []
    batches = list(validation_batches(6, 2))
    for number in (1, 3):
        with host_reads(monkeypatch, learner) as reads:
            evaluate(learner, batches[:number])
        counts.append(list(reads))
    assert counts == [["tolist"], ["tolist"]]


def test_a_network_without_foreground_classes_is_refused():
    """Hazard 2: one channel would report perfect scores."""
    with pytest.raises(ValueError, match="1 class"):
        evaluate(with_model(torch.nn.Conv3d(3, 1, 1).double(), torch.ones(1)), validation_batches(1, 1))
