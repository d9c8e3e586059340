"""The kernels of the loss sums against the formula in float64."""

import pytest
import torch
from sums_case import PLAIN, SHAPE, cotangent_for, exact, found, make_case
from tensors import LAST

from scaffold.kernels import segmentation_sums
from scaffold.kernels.segmentation import op, plan, reference

CASES = [
    (6, torch.float32, LAST, torch.uint8),
    (6, torch.bfloat16, LAST, torch.int16),
    (6, torch.bfloat16, PLAIN, torch.uint8),
    (5, torch.bfloat16, LAST, torch.int64),
    (2, torch.float16, LAST, torch.int32),
    (7, torch.float32, PLAIN, torch.uint16),
    (37, torch.float32, LAST, torch.int8),
    (64, torch.bfloat16, LAST, torch.uint8),
]
"""Classes, types, layouts: padded and not, read in pairs and not."""

ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of a gradient, relative to the largest: one rounding, which the interpreter does by truncation."""


def assert_close(function, case, tolerance=1.0):
    logits = case[0]
    cotangent = cotangent_for(logits)
    sums, gradient = found(function, *case, cotangent)
    right_sums, right_gradient = exact(*case, cotangent)
    torch.testing.assert_close(sums.double(), right_sums, rtol=tolerance * 1e-6, atol=0)
    assert (gradient.double() - right_gradient).abs().max() <= ROUNDING[logits.dtype] * right_gradient.abs().max()
    assert (gradient.dtype, gradient.stride()) == (logits.dtype, logits.stride())


@pytest.mark.parametrize(("classes", "dtype", "layout", "labels"), CASES, ids=str)
def test_sums_and_gradient_are_those_of_the_formula(classes, dtype, layout, labels, device):
    """Another loss would be minimised, or a tail or a padded class be counted."""
    shape = SHAPE if classes <= 8 else (3, 5, 11)
    assert_close(op.triton, make_case(device, classes, dtype, layout, labels, shape))


def test_a_slightly_different_formula_is_noticed(device):
    """Control: weights off by 1e-5, or a voxel that is not counted, pass no tolerance above."""
    case = make_case(device)
    for wrong in (
        lambda logits, labels, weights: op.triton(logits, labels, weights * (1 + 1e-5)),
        lambda logits, labels, weights: op.triton(
            logits[..., :-1].contiguous(), labels[..., :-1].contiguous(), weights
        ),
    ):
        with pytest.raises(AssertionError):
            torch.testing.assert_close(wrong(*case).double(), reference.eager(*case).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 8, 8), (1, 1, 257), (2, 16, 16)], ids=str)
def test_any_number_of_voxels(shape, device):
    """One voxel, one tile exactly, one voxel more, as many tiles as programs."""
    assert_close(op.triton, make_case(device, shape=shape, samples=3))


def test_programs_take_several_turns(device):
    """The sizes above would not reach the loop of a program."""
    tiles = plan.plan(2, 6, 1365, 1)
    assert tiles.turns > 1
    assert tiles.programs * tiles.turns > tiles.tiles, "one program overshoots"
    if device == "cuda":
        assert_close(op.triton, make_case(device, shape=(80, 90, 100)))


@pytest.mark.parametrize("labels", [torch.int64, torch.int16, torch.uint8])
def test_labels_outside_count_in_no_sum(labels, device):
    """A label 2**32 + 1 or -1 would be taken for class 1 or for the last one."""
    logits, truth, weights = make_case(device, labels=labels)
    outside = [200, 6] if labels == torch.uint8 else [-1, 6]
    truth[:, 0, :3, :3] = outside[0]
    truth[:, 1, :3, :3] = outside[1]
    if labels == torch.int64:
        truth[:, 2, :3, :3] = 2**32 + 1
        truth[:, 3, :3, :3] = -(2**32) + 1
    assert_close(op.triton, (logits, truth, weights))


VALUES = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_non_finite_logits_show_where_they_do_in_the_formula(value, weight, dtype, device):
    """Hazard 16: the loop stops at a loss that is not finite; a maximum that skips NaN must not hide it."""
    logits, labels, weights = make_case(device, dtype=dtype, samples=4, shape=(3, 5, 7))
    weights[2] = weight
    logits[0, 2, 1, 1, 1] = value
    labels[0, 1, 1, 1] = 2
    logits[1, 2, 1, 1, 1] = value
    labels[1, 1, 1, 1] = 3
    logits[2, :, 1, 1, 1] = value
    cotangent = cotangent_for(logits)
    ours = found(op.triton, logits, labels, weights, cotangent)
    formula = found(reference.eager, logits, labels, weights, cotangent)
    for mine, right in zip(ours, formula, strict=True):
        assert torch.equal(mine.isnan(), right.isnan())
        assert torch.equal(mine.isposinf(), right.isposinf())
    assert not formula[0][2].isfinite().all(), "control: the value shows"
    assert ours[0][3].isfinite().all()


def test_label_outside_at_a_voxel_of_nan(device):
    """NaN times a weight of zero would reach the cross-entropy, which does not count the voxel."""
    logits, labels, weights = make_case(device)
    logits[0, 1, 0, 0, 0] = torch.nan
    labels[0, 0, 0, 0] = 77
    sums = op.triton(logits, labels, weights)
    assert sums[:, 0].isfinite().all()
    assert sums[0, 1:, 1].isnan().all()


@pytest.mark.usefixtures("poisoned_memory")
def test_nothing_unwritten_is_read(device):
    """A program would leave its row of partial sums, or a gradient its tail, as it found it."""
    assert_close(op.triton, make_case(device, shape=(3, 5, 7), samples=3))


def test_confident_mistakes_stay_finite(device):
    """log(softmax) through the probability would be log(0)."""
    logits, labels, weights = make_case(device)
    logits *= 1e4
    sums, gradient = found(op.triton, logits, labels, weights, cotangent_for(logits))
    assert (logits.softmax(1) == 0).any(), "the case must contain probabilities that underflow"
    assert sums.isfinite().all()
    assert gradient.isfinite().all()


def test_twenty_repeats_give_the_same_bits(device):
    """Hazard 9: the validation loss decides which checkpoint is best."""
    case = make_case(device, shape=(40, 64, 64) if device == "cuda" else (3, 5, 7))
    cotangent = cotangent_for(case[0])
    first = found(op.triton, *case, cotangent)
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(found(op.triton, *case, cotangent), first, strict=True))


def test_gradient_of_an_expanded_sum(device):
    """A cotangent with strides of zero, as ``sums.sum()`` gives it, would be read as if it were packed."""
    logits, labels, weights = make_case(device)
    logits.requires_grad_()
    (ours,) = torch.autograd.grad(op.triton(logits, labels, weights).sum(), logits)
    (right,) = torch.autograd.grad(reference.eager(logits, labels, weights).sum(), logits)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6)


def test_served_by_the_kernels(device, monkeypatch):
    """The tests below of calls that are declined would pass if all were."""
    calls = []
    real = op._sums
    monkeypatch.setattr(op, "_sums", lambda *args: calls.append(1) or real(*args))
    case = make_case(device, dtype=torch.bfloat16)
    assert op.declines(*case) is None
    with torch.inference_mode():
        segmentation_sums(*case)
    assert calls == [1]


DECLINED = {
    "float64": lambda logits, labels, weights: (logits.double(), labels, weights),
    "labels of bool": lambda logits, labels, weights: (logits, labels.bool(), weights),
    "sliced logits": lambda logits, labels, weights: (logits[..., :-1], labels[..., :-1].contiguous(), weights),
    "expanded labels": lambda logits, labels, weights: (logits, labels[:1].expand_as(labels), weights),
    "gradient of weights": lambda logits, labels, weights: (logits, labels, weights.clone().requires_grad_()),
    "a single class": lambda logits, labels, weights: (logits[:, :1].contiguous(), labels, weights[:1]),
    "no sample": lambda logits, labels, weights: (logits[:0], labels[:0], weights),
    "66 classes": lambda logits, labels, weights: (logits.repeat(1, 11, 1, 1, 1), labels, weights.repeat(11)),
}  # fmt: skip


@pytest.mark.parametrize("change", DECLINED)
def test_declined_calls_follow_the_formula(change, device):
    """A call that the kernels cannot serve would reach them."""
    case = DECLINED[change](*make_case(device, shape=(2, 3, 4)))
    assert op.declines(*case) is not None
    if change != "labels of bool":
        assert torch.equal(segmentation_sums(*case), reference.eager(*case))


def test_mismatched_shapes_are_the_formulas_error(device):
    """A user's mistake would become an access beyond a tensor's end."""
    logits, labels, weights = make_case(device, shape=(2, 3, 4))
    with pytest.raises(ValueError, match=r"are not \(N, C, D, H, W\), \(N, D, H, W\) and \(C,\)"):
        segmentation_sums(logits, labels[:, :1].contiguous(), weights[:2])


def test_functorch_and_subclasses_are_declined(device):
    """The operators have no rule for them."""
    logits, labels, weights = make_case(device, shape=(2, 3, 4))
    reasons = []

    def loss(x):
        reasons.append(op.declines(x, labels, weights))
        return segmentation_sums(x, labels, weights).sum()

    torch.func.grad(loss)(logits)
    assert reasons[0] is not None
    assert op.declines(logits.as_subclass(type("Sub", (torch.Tensor,), {})), labels, weights) is not None


def test_operators_are_registered_soundly(device):
    """The fake kernels would disagree with the real ones in shape, dtype or strides, and break compilation."""
    logits, labels, weights = make_case(device, shape=(2, 3, 4), dtype=torch.float16)
    logits.requires_grad_()
    torch.library.opcheck(torch.ops.scaffold.segmentation_sums.default, (logits, labels, weights))
    with torch.no_grad():
        arguments = (logits, labels, weights, cotangent_for(logits))
        torch.library.opcheck(torch.ops.scaffold.segmentation_sums_backward.default, arguments)


def test_second_derivative_raises(device):
    """It would silently be zero."""
    logits, labels, weights = make_case(device, shape=(2, 3, 4))
    logits.requires_grad_()
    sums = op.triton(logits, labels, weights)
    (gradient,) = torch.autograd.grad(sums.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(gradient.square().sum(), logits)
