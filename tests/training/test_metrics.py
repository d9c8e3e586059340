"""The Dice score: what a perfect, an empty and an unsure prediction get."""

import pytest
import torch

from scaffold.training.metrics import foreground_dice, hard_dice_sums


def logits_of(labels, classes=3, confidence=5.0):
    return torch.nn.functional.one_hot(labels, classes).movedim(-1, 1).float() * confidence


def labels_of(*rows):
    return torch.tensor(rows).reshape(len(rows), 2, 2, 2)


def hard_dice(logits, labels):
    return foreground_dice(hard_dice_sums(logits, labels))


TRUTH = labels_of([0, 0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, 1, 1])


def test_perfect_prediction_scores_one_also_where_a_class_is_absent():
    """Hazard 1: the second sample has no class 2; target 1.0 must be reachable."""
    assert torch.equal(hard_dice(logits_of(TRUTH), TRUTH), torch.ones(2, 2))


def test_score_does_not_depend_on_confidence():
    """Hazard 1: a score from probabilities would grow with confidence, at equal predictions."""
    predicted = labels_of([0, 0, 0, 1, 1, 1, 2, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    sure, unsure = (hard_dice(logits_of(predicted, confidence=c), TRUTH) for c in (9.0, 0.1))
    assert torch.equal(sure, unsure)
    torch.testing.assert_close(sure[0], torch.tensor([4 / 5, 2 / 3]))


def test_background_does_not_count():
    """Hazard 2: predicting nothing finds 99 % of the voxels right, and must score zero."""
    nothing = torch.zeros_like(TRUTH)
    torch.testing.assert_close(hard_dice(logits_of(nothing), TRUTH)[0], torch.zeros(2), rtol=0, atol=1e-6)


def test_predicting_an_absent_class_scores_zero():
    """Absent is perfect only if it is not predicted."""
    assert hard_dice(logits_of(labels_of([2] * 8)), labels_of([1] * 8))[0].max() < 1e-6


def test_one_class_is_refused():
    """Hazard 2: without foreground classes the mean over none would report perfection."""
    with pytest.raises(ValueError, match="1 class"):
        foreground_dice(torch.ones(1, 1, 2))


def test_sums_of_blocks_add_up():
    """Hazard 8: shards merge counts; the mean of two blocks' Dice is not the volume's."""
    predicted = labels_of([0, 1, 0, 0, 1, 1, 2, 0], [0, 2, 0, 0, 1, 0, 1, 1])
    logits = logits_of(predicted)
    parts = [hard_dice_sums(a, b) for a, b in zip(logits.split(1, 2), TRUTH.split(1, 1), strict=True)]
    assert torch.equal(foreground_dice(sum(parts)), hard_dice(logits, TRUTH))
    assert not torch.equal(sum(map(foreground_dice, parts)) / 2, hard_dice(logits, TRUTH))
