"""The weight gradient by slabs equals the library's own, and no call is larger than planned."""

import pytest
import torch
import torch.nn.functional as F
from tensors import LAST

from scaffold.kernels import convolution3
from scaffold.kernels.convolution import slabs


def draw(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).contiguous(memory_format=LAST)


def case(depth=9, samples=1, dtype=torch.float64):
    """Return (x, weight, dy), the first two with gradients."""
    x, weight = draw(samples, 5, depth, 4, 3, dtype=dtype), draw(6, 5, 3, 3, 3, dtype=dtype, seed=1)
    return x.requires_grad_(), weight.requires_grad_(), draw(samples, 6, depth, 4, 3, dtype=dtype, seed=2)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize(("depth", "count"), [(9, 1), (9, 2), (9, 3), (9, 7), (1, 1), (2, 1), (3, 1), (4, 2)])
def test_slabs_equal_one_call(depth, count, samples):
    """A plane at a slab's end is lost or counted twice, or a sample forgotten."""
    x, weight, dy = case(depth, samples)
    y, stock = convolution3(x, weight, count), F.conv3d(x, weight, padding=1)
    assert torch.equal(y, stock)
    found, expected = (torch.autograd.grad(output, (x, weight), dy) for output in (y, stock))
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=1e-12)
    assert found[1].stride() == weight.stride()
    narrow = torch.autograd.grad(convolution3(x.float(), weight.float(), count), weight, dy.float())[0]
    assert (narrow - expected[1]).abs().max() > 1e-8, "control: float32 shows"


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_lost_piece_is_noticed(lost, monkeypatch):
    """Control: the comparison above would pass although a piece of the volume is left out."""
    x, weight, dy = case()
    expected = torch.autograd.grad(F.conv3d(x, weight, padding=1), weight, dy)[0]
    real = slabs.pieces
    monkeypatch.setattr(
        slabs, "pieces", lambda depth, count: real(depth, count)[:lost] + real(depth, count)[lost + 1 :]
    )
    found = torch.autograd.grad(convolution3(x, weight, 2), weight, dy)[0]
    assert (found - expected).abs().max() > 0.1


def test_pieces_meet_each_plane_and_tap_once():
    """The cut would depend on a depth that happens to be even."""
    for depth in range(1, 20):
        inside = sorted((d, tap) for d in range(depth) for tap in range(3) if 0 <= d + tap - 1 < depth)
        for count in range(1, max(2, depth - 1)):
            cut = slabs.pieces(depth, count)
            assert len(cut) == min(depth, 2 + count)
            met = [(d, tap) for p in cut for d in range(p.begin, p.end) for tap in range(p.tap_begin, p.tap_end)]
            assert sorted(met) == inside, (depth, count)


@pytest.mark.parametrize("channels", [64, 128, 256])
@pytest.mark.parametrize("depth", [96, 128, 256, 384])
def test_planned_slabs_keep_calls_small(depth, channels):
    """A call beyond the limit falls off cuDNN's cliff; the halo planes count."""
    shape = (1, channels, depth, 256, 256)
    plane = channels * 256 * 256
    count = slabs.planned_slabs(shape, 64)
    if count == 0:
        assert depth * plane <= slabs.MOST_ELEMENTS
    else:
        assert depth * plane > slabs.MOST_ELEMENTS
        assert all((p.end - p.begin + 2) * plane <= slabs.MOST_ELEMENTS for p in slabs.pieces(depth, count))


def test_planned_slabs_count_the_batch_and_the_larger_operand():
    """The library is given the whole batch, and the gradient of the output with it: either may pass the limit."""
    half = (64, 128, 256, 256)
    assert slabs.planned_slabs((2, *half), 64) == 0, "control: exactly the limit"
    assert slabs.planned_slabs((3, *half), 64) == 1
    narrow, wide = (1, 64, 256, 256, 256), (1, 128, 256, 256, 256)
    assert slabs.planned_slabs(narrow, 64) == 0
    assert slabs.planned_slabs(narrow, 128) == slabs.planned_slabs(wide, 64) > 1


def test_slabs_are_summed_in_float32():
    """A sum in bfloat16 stops growing at 256: what later slabs add would be lost."""
    x, weight = torch.ones(1, 1, 10, 16, 16).bfloat16(), torch.zeros(1, 1, 3, 3, 3).bfloat16()
    dy = torch.zeros(1, 1, 10, 16, 16).bfloat16()
    dy[:, :, 0] = 1
    dy[:, :, 1:9, 5, 5] = 1
    centre = slabs.slab_weight_gradient(dy, x, weight, 8)[0, 0, 1, 1, 1]
    assert centre == 256 + 8
    assert (torch.tensor(256).bfloat16() + 1) == 256, "control: bfloat16 cannot add them"


def test_an_image_without_a_batch_is_refused():
    """PyTorch takes one; the plan of slabs would take its depth for channels."""
    with pytest.raises(ValueError, match=r"x is \(5, 4, 4, 4\), not \(N, C, D, H, W\)"):
        convolution3(torch.zeros(5, 4, 4, 4), torch.zeros(6, 5, 3, 3, 3))


def test_large_tensors_go_slab_by_slab_as_dense_views(monkeypatch):
    """A large convolution would still reach the library whole, or its slabs be copied."""
    x, weight, dy = case(depth=12)
    x = x.detach()
    calls, real = [], slabs._gradients

    def observed(dy, x, *rest):
        calls.append((x.shape[2], x.is_contiguous(memory_format=LAST) and dy.is_contiguous(memory_format=LAST)))
        return real(dy, x, *rest)

    monkeypatch.setattr(slabs, "_gradients", observed)
    torch.autograd.grad(convolution3(x, weight), weight, dy)
    assert calls == [], "control: a small one is the library's own call"
    monkeypatch.setattr(slabs, "MOST_ELEMENTS", 7 * 6 * 4 * 3)
    slabs.planned_slabs.cache_clear()
    try:
        torch.autograd.grad(convolution3(x, weight), weight, dy)
    finally:
        slabs.planned_slabs.cache_clear()
    assert calls == [(2, True), (2, True), (7, True), (7, True)]


def test_autocast_is_that_of_the_library():
    """Types of outputs and gradients differ from stock, or the weight's float32 enters the products."""
    x, weight, dy = case(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, stock = convolution3(x, weight, 2), F.conv3d(x, weight, padding=1)
    assert y.dtype == stock.dtype == torch.bfloat16
    assert torch.equal(y, stock)
    found, expected = (torch.autograd.grad(output, (x, weight), dy.bfloat16()) for output in (y, stock))
    assert [g.dtype for g in found] == [g.dtype for g in expected] == [torch.float32] * 2
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0.02 * expected[1].abs().max().item())


def test_autocast_leaves_float64_alone():
    """The library does; a network in double precision would be checked in bfloat16."""
    x, weight, dy = case()
    with torch.autocast("cpu", torch.bfloat16):
        y, stock = convolution3(x, weight, 2), F.conv3d(x, weight, padding=1)
    assert y.dtype == stock.dtype == torch.float64
    found, expected = (torch.autograd.grad(output, weight, dy)[0] for output in (y, stock))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_impossible_slabs_are_refused():
    """More slabs than inner planes would make empty calls."""
    x, weight, _ = case()
    for count in (-1, 8):
        with pytest.raises(ValueError, match=f"slabs = {count}: from 0 to 7 are possible at a depth of 9"):
            convolution3(x, weight, count)


def test_only_what_is_needed_is_computed(monkeypatch):
    """The image's or the weight's gradient would be computed for nothing."""
    x, weight, dy = case()
    wanted, real = [], slabs._gradients
    monkeypatch.setattr(slabs, "_gradients", lambda *a: wanted.append(a[-1]) or real(*a))
    torch.autograd.grad(convolution3(x, weight.detach(), 1), x, dy)
    assert wanted == [(True, False)]
    wanted.clear()
    torch.autograd.grad(convolution3(x.detach(), weight, 1), weight, dy)
    assert wanted == [(False, True)] * 3
