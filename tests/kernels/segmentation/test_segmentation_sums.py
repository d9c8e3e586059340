"""The sums behind the loss, against plain NumPy."""

import numpy as np
import pytest
import torch

from scaffold.kernels import segmentation_sums
from scaffold.kernels.segmentation import one_hot


def case(dtype=torch.float64, scale=2.0):
    torch.manual_seed(5)
    logits = (torch.randn(2, 4, 5, 6, 7, dtype=torch.float64) * scale).to(dtype)
    labels = torch.randint(0, 4, (2, 5, 6, 7), dtype=torch.int16)
    labels[1][labels[1] == 2] = 0  # a class that one sample lacks
    return logits, labels, torch.tensor([1.0, 50.0, 60.0, 70.0])


def by_hand(logits, labels, weights):
    logits, labels, weights = (tensor.double().numpy() for tensor in (logits, labels, weights))
    labels = labels.astype(int)
    e = np.exp(logits - logits.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    sums = np.zeros((len(p), 1 + p.shape[1], 2))
    for n in range(len(p)):
        for voxel in np.ndindex(labels.shape[1:]):
            y = labels[n][voxel]
            sums[n, 0] += weights[y] * -np.log(p[n, y][voxel]), weights[y]
            sums[n, 1 + y, 0] += 2 * p[n, y][voxel]
            sums[n, 1 + y, 1] += 1
            sums[n, 1:, 1] += p[(n, slice(None), *voxel)]
    return torch.from_numpy(sums)


def test_sums_are_those_of_the_definition():
    """A wrong sum shifts the loss of every run."""
    torch.testing.assert_close(segmentation_sums(*case()), by_hand(*case()), rtol=1e-12, atol=1e-12)


def test_blocks_add_up_to_the_whole():
    """Hazards 8 and 11: uneven shards merge by adding one tensor; averaging their ratios is something else."""
    logits, labels, weights = case()
    whole = segmentation_sums(logits, labels, weights)
    parts = [
        segmentation_sums(a, b, weights) for a, b in zip(logits.split([1, 4], 2), labels.split([1, 4], 1), strict=True)
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    averaged = sum(part[..., 0] / part[..., 1] for part in parts) / 2
    assert (averaged - whole[..., 0] / whole[..., 1]).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_the_type_of_the_labels_does_not_matter(dtype):
    """Hazard 46: labels travel in their narrow storage type."""
    logits, labels, weights = case(torch.float32)
    assert torch.equal(segmentation_sums(logits, labels.to(dtype), weights), segmentation_sums(logits, labels, weights))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_labels_may_be_narrower_than_the_number_of_classes(dtype):
    """The 256 names that a byte holds would stand for several classes each."""
    most = torch.iinfo(dtype).max
    logits = torch.randn(1, 300, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([3, most]).view(1, 1, 1, 2)
    found, wanted = (segmentation_sums(logits, kind, torch.ones(300)) for kind in (labels.to(dtype), labels))
    assert torch.equal(found, wanted)
    assert one_hot(labels.to(dtype), 300).sum() == 2


@pytest.mark.parametrize(
    ("labels", "weights"), [((2, 4, 4, 1), (3,)), ((2, 4, 4, 4), (1,)), ((1, 4, 4, 4), (3,)), ((2, 1, 4, 4, 4), (3,))]
)
def test_shapes_that_would_broadcast_are_refused(labels, weights):
    """A loss would come out that is none, and the training go on with it."""
    logits = torch.zeros(2, 3, 4, 4, 4)
    assert segmentation_sums(logits, torch.zeros(2, 4, 4, 4, dtype=torch.uint8), torch.ones(3)).shape == (2, 4, 2)
    with pytest.raises(ValueError, match=r"\(2, 3, 4, 4, 4\)") as raised:
        segmentation_sums(logits, torch.zeros(labels, dtype=torch.uint8), torch.ones(weights))
    assert f"labels {labels} and weights {weights}" in str(raised.value)


def test_bfloat16_logits_are_summed_in_float32():
    """A sum of 10^6 voxels in bfloat16 stops growing at 256."""
    logits, labels, weights = case(torch.bfloat16)
    sums = segmentation_sums(logits, labels, weights)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), by_hand(logits, labels, weights), rtol=1e-5, atol=1e-5)


def test_gradient_is_that_of_the_sums():
    """A detached factor would train towards something else."""
    logits, labels, weights = case()
    small = logits[:, :, :2, :2, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: segmentation_sums(x, labels[:, :2, :2, :2], weights.double()), small)


def test_confident_mistakes_stay_finite():
    """log(softmax) through the probability would be log(0)."""
    logits, labels, weights = case(torch.float32, scale=1e4)
    logits.requires_grad_()
    sums = segmentation_sums(logits, labels, weights)
    sums[:, 0, 0].sum().backward()
    assert (logits.detach().softmax(1) == 0).any(), "the case must contain probabilities that underflow"
    assert sums.isfinite().all()
    assert logits.grad.isfinite().all()


def test_repeats_bit_for_bit():
    """Hazard 9: the validation loss decides which checkpoint is best."""
    first = segmentation_sums(*case(torch.float32))
    assert all(torch.equal(segmentation_sums(*case(torch.float32)), first) for _ in range(20))
