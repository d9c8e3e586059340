"""The loss against PyTorch's cross-entropy and a Dice written out."""

import pytest
import torch
import torch.nn.functional as F

from scaffold.training.objective import from_sums, objective

WEIGHTS = torch.tensor([1.0, 30.0, 30.0], dtype=torch.float64)


def case(dtype=torch.float64):
    torch.manual_seed(6)
    logits = torch.randn(2, 3, 4, 4, 4, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 3, (2, 4, 4, 4))
    labels[0] = labels[0] * (torch.rand(4, 4, 4) < 0.2)  # the samples' weights differ much
    return logits, labels


def soft_dice(logits, labels):
    p = logits.softmax(1)
    scores = []
    for n in range(len(p)):
        for c in (1, 2):
            g = (labels[n] == c).double()
            scores.append((2 * (p[n, c] * g).sum() + 1e-6) / (p[n, c].sum() + g.sum() + 1e-6))
    return torch.stack(scores).view(len(p), 2)


def test_is_weighted_cross_entropy_plus_one_minus_dice():
    """Another loss is another benchmark."""
    logits, labels = case()
    result = objective(logits, labels, WEIGHTS)
    expected = F.cross_entropy(logits, labels, WEIGHTS)
    torch.testing.assert_close(result.cross_entropy, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.soft_dice, soft_dice(logits, labels), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.loss, expected + 1 - soft_dice(logits, labels).mean(), rtol=0, atol=1e-12)


def test_cross_entropy_is_normalised_over_the_batch():
    """Hazard 8: the mean of the samples' own means is another number when their weights differ."""
    logits, labels = case()
    each = [objective(logits[n : n + 1], labels[n : n + 1], WEIGHTS).cross_entropy for n in range(2)]
    assert (objective(logits, labels, WEIGHTS).cross_entropy - sum(each) / 2).abs() > 1e-3


def test_autocast_does_not_reach_the_loss():
    """A loss in bfloat16 moves in steps of 0.4 %."""
    logits, labels = case(torch.bfloat16)
    exact = objective(logits.double(), labels, WEIGHTS).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(logits, labels, WEIGHTS.float()).loss
    assert loss.dtype == torch.float32
    assert (loss - exact).abs() < 1e-5
    assert (exact.bfloat16() - exact).abs() > 1e-3, "control: bfloat16 cannot hold it so closely"


@pytest.mark.parametrize("label", [0, 1])
def test_a_volume_of_one_label_has_a_finite_loss_and_gradient(label):
    """Absent classes divide by their probability's sum alone, and weights of zero by nothing."""
    logits = torch.zeros(1, 3, 2, 2, 2, requires_grad=True)
    labels = torch.full((1, 2, 2, 2), label)
    for weights in (torch.ones(3), torch.zeros(3)):
        loss = objective(logits, labels, weights).loss
        loss.backward()
        assert loss.isfinite()
        assert logits.grad.isfinite().all()


def test_not_predicted_and_absent_is_perfect_even_at_probability_zero():
    """Hazard 1: the sums 0 and 0 give 1, and a gradient that is not NaN."""
    sums = torch.tensor([[[0.0, 8.0], [16.0, 16.0], [0.0, 0.0]]], requires_grad=True)
    result = from_sums(sums)
    result.loss.backward()
    assert result.loss == 0
    assert sums.grad.isfinite().all()


def test_non_finite_logits_give_a_non_finite_loss():
    """Hazard 16: the loop stops at a loss that is not finite; a clamp must not make it look fine."""
    logits, labels = case()
    logits[0, 0, 0, 0, 0] = torch.nan
    assert not objective(logits, labels, WEIGHTS).loss.isfinite()
