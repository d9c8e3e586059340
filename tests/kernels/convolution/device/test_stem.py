"""The stem's kernels against float64, bit for bit where sums are exact, and which calls they decline."""

import pytest
import torch
from mutants import mutant
from stem_cases import exact_convolution, make_case
from tensors import LAST, relative_error

from scaffold.kernels import stem_convolution
from scaffold.kernels.convolution import stem, stem_kernels, stem_plan

SHAPES = {
    "odd width, two samples": ((2, 3, 2, 2, 7), 16),
    "two strips, rows that their number does not divide": ((1, 3, 2, 3, 36), 16),
    "one voxel": ((1, 3, 1, 1, 1), 16),
    "one channel": ((1, 1, 2, 3, 5), 16),
    "two channels": ((1, 2, 2, 3, 6), 16),
    "four channels": ((1, 4, 2, 2, 6), 32),
}


def run(x, weight, dy):
    """Return output and weight gradient by the kernels."""
    weight = weight.detach().requires_grad_()
    assert stem.declines(x, weight) is None
    y = stem_convolution(x, weight)
    return y.detach(), torch.autograd.grad(y, weight, dy)[0]


@pytest.mark.parametrize("name", SHAPES)
def test_exact_sums_have_equal_bits(name, device):
    """A tap, a border or a strip's end is wrong: with operands -1, 0 and 1 there is no rounding to hide behind."""
    case = make_case(*SHAPES[name], device=device, ternary=True)
    found, exact = run(*case), exact_convolution(*case)
    for result, right in zip(found, exact, strict=True):
        assert torch.equal(result.cpu().double(), right)
    x, weight, dy = case
    if x.shape[-1] > 1:
        for spoilt in ((x.roll(1, -1), weight, dy), (x, weight.flip(2), dy), (x, weight.transpose(3, 4), dy)):
            assert not torch.equal(found[0].cpu().double(), exact_convolution(*spoilt)[0]), "control"
        assert not torch.equal(found[1].cpu().double(), exact_convolution(x.roll(1, 3), weight, dy)[1]), "control"


def test_error_is_that_of_float32(device):
    """Operands would be rounded to tf32, or sums kept in 16 bits: without autocast the kernels are IEEE float32."""
    case = make_case((1, 3, 3, 4, 10), 16, device=device)
    exact = exact_convolution(*case)
    for result, right in zip(run(*case), exact, strict=True):
        assert relative_error(result, right) < 1e-6
    coarse = [((tensor.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32) for tensor in case]
    assert relative_error(exact_convolution(*coarse)[0], exact[0]) > 1e-5, "control: tf32 operands show"


@pytest.mark.parametrize("channels", [1, 3])
def test_borders_count_the_taps_inside(channels, device):
    """One of the 27 kinds of border voxel reads beyond the volume, or misses a neighbour."""
    x = torch.ones(1, channels, 3, 3, 3, device=device).contiguous(memory_format=LAST)
    weight = torch.ones(16, channels, 3, 3, 3, device=device)
    inside = torch.tensor([2.0, 3.0, 2.0])
    taps = channels * inside[:, None, None] * inside[None, :, None] * inside[None, None, :]
    assert torch.equal(stem_convolution(x, weight).cpu(), taps.expand(1, 16, 3, 3, 3))


def test_order_of_memory_neither_changes_bits_nor_the_gradient_s_strides(device):
    """A weight would be read as if it were packed in one order, and its gradient come in another than its own."""
    x, weight, dy = make_case((1, 3, 1, 2, 6), 16, device=device)
    y, gradient = run(x, weight, dy)
    assert y.is_contiguous(memory_format=LAST)
    assert gradient.stride() == weight.stride()
    packed = weight.contiguous()
    assert packed.stride() != weight.stride()
    y_packed, gradient_packed = run(x, packed, dy.contiguous())
    assert gradient_packed.stride() == packed.stride()
    assert torch.equal(y, y_packed)
    assert torch.equal(gradient, gradient_packed)


def test_every_partial_sum_is_written(device, monkeypatch):
    """Scratch memory, here full of NaN, would enter the sum."""
    case = make_case((1, 1, 1, 3, 36), 16, device=device)
    expected, real = run(*case), torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: real(*a, **k).fill_(float("nan")))
    poisoned = run(*case)
    assert torch.empty(1).isnan()
    assert all(torch.equal(a, b) for a, b in zip(expected, poisoned, strict=True))


def test_a_voxel_that_is_not_finite_stays_near(device):
    """NaN is never hidden, and reaches no further than the pair of voxels whose windows contain it."""
    x, weight, _ = make_case((1, 3, 2, 2, 12), 16, device=device)
    x[0, 1, 1, 0, 6] = float("nan")
    bad = stem_convolution(x, weight).isnan()
    assert bad[..., 4:8].all()
    assert not bad[..., :4].any()
    assert not bad[..., 8:].any()


def refused(device):
    """Return {reason: (x, weight)}, each with one thing wrong."""
    x, weight, _ = make_case((1, 3, 2, 2, 6), 16, device=device)
    wide = torch.randn(1, 5, 2, 2, 6, device=device).contiguous(memory_format=LAST)
    return {
        "subclass": (x.as_subclass(type("Own", (torch.Tensor,), {})), weight),
        "channels-last": (x.contiguous(), weight),
        "dtypes": (x.double(), weight.double()),
        "differ in dtype": (x, weight.bfloat16()),
        "3^3 convolution of 1 to 4": (wide, torch.randn(16, 5, 3, 3, 3, device=device)),
        "24 output channels": (x, torch.randn(24, 3, 3, 3, 3, device=device)),
        "empty": (x[:, :, :0], weight),
        "needs a gradient": (x.clone(memory_format=torch.preserve_format).requires_grad_(), weight),
    }


def test_each_refusal_has_its_reason(device):
    """A call that the kernels cannot serve would reach them."""
    x, weight, _ = make_case((1, 3, 2, 2, 6), 16, device=device)
    assert stem.declines(x, weight) is None
    for reason, call in refused(device).items():
        assert reason in (stem.declines(*call) or ""), reason


def test_image_that_needs_a_gradient_gets_it(device):
    """The kernels give none, and silence would be a zero."""
    x, weight, dy = make_case((1, 3, 2, 2, 6), 16, device=device, seed=3)
    x.requires_grad_()
    found = torch.autograd.grad(stem_convolution(x, weight), x, dy)[0]
    exact = torch.nn.grad.conv3d_input(x.shape, weight.double(), dy.double(), padding=1)
    assert relative_error(found, exact.cpu()) < 1e-3
    with pytest.raises(RuntimeError, match="no gradient of the image"):
        torch.autograd.grad(torch.ops.scaffold.stem_convolution(x, weight, torch.float32), x, dy)


def test_second_derivative_is_refused(device):
    """``create_graph=True`` would silently give zeros."""
    x, weight, dy = make_case((1, 3, 1, 2, 4), 16, device=device)
    weight.requires_grad_()
    dy.requires_grad_()
    (first,) = torch.autograd.grad(stem_convolution(x, weight), weight, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(first.sum(), dy)


def test_operator_registration_is_sound(device):
    """The fake kernels would disagree with the real ones in shape, dtype or strides, and break compilation."""
    x, weight, _ = make_case((1, 1, 1, 2, 3), 16, device=device)
    arguments = (x, weight.requires_grad_(), torch.float32)
    torch.library.opcheck(torch.ops.scaffold.stem_convolution.default, arguments)


MUTATIONS = {
    "window one voxel late": ("(k % WINDOW - (C + LEAD))", "(k % WINDOW - LEAD)"),
    "depth unchecked": ("(depth >= 0) & (depth < D)", "(depth >= -1) & (depth < D)"),
    "row's end unchecked": ("< tl.cast(W * C, ", "< tl.cast(W * C + C, "),
    "weights of one voxel only": ("value[:, None] // C - voxel[None, :]", "value[:, None] // C - 0 * voxel[None, :]"),
    "last rows dropped": ("mask = (h < H)", "mask = (h < H - 1)"),
    "second voxel's share dropped": ("acc += tl.load(rows + second[None, :], mask=mask, other=0.0)\n", "pass\n"),
    "last partial sum dropped": ("(row < PARTIALS)", "(row < PARTIALS - 1)"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_kernel_is_noticed(name, tmp_path, monkeypatch, device):
    """Control: the comparison with exact sums would pass although a kernel computes something else."""
    old, new = MUTATIONS[name]
    wrong = mutant(stem_kernels, old, new, monkeypatch, tmp_path)
    for kernel in ("forward_kernel", "weight_gradient_kernel", "weight_gradient_sum_kernel"):
        monkeypatch.setattr(stem_kernels, kernel, getattr(wrong, kernel))
    case = make_case((1, 3, 2, 3, 6), 16, device=device, ternary=True)
    exact = exact_convolution(*case)
    equal = [torch.equal(a.cpu().double(), b) for a, b in zip(run(*case), exact, strict=True)]
    assert not all(equal)


def test_sizes_here_reach_every_branch_of_the_plan():
    """The shapes above would all be one strip, one chunk and one tile of k."""
    launches = [
        plan(n * d, h, w, c, out, False, 8)
        for (n, c, d, h, w), out in SHAPES.values()
        for plan in (stem_plan.forward_launch, stem_plan.weight_gradient_launch)
    ]
    assert {launch.strips for launch in launches} >= {1, 2}
    assert any(launch.chunks > 1 for launch in launches)
    assert any(launch.turns > 1 for launch in launches)
    heights = [shape[3] for shape, _ in SHAPES.values() for _ in range(2)]
    assert any(launch.chunks * launch.turns > height for launch, height in zip(launches, heights, strict=True))
