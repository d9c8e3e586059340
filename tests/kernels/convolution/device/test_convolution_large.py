"""What only a GPU can show: 16-bit products, sizes of production, races, the library's own kernels."""

import kernel_needs
import pytest
import torch
import torch.nn.functional as F
from tensors import LAST

from scaffold.kernels import convolution3, stem_convolution
from scaffold.kernels.convolution import slabs, stem

pytestmark = kernel_needs.GPU


@pytest.fixture(autouse=True)
def _ieee():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def draw(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype).contiguous(memory_format=LAST)


def weight_gradient(dy, x, weight):
    """By the library, in one call."""
    return slabs._gradients(dy, x, weight, (1, 1, 1), (False, True))[1]


def rms_error(found, exact):
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


@pytest.mark.parametrize("shape", [(1, 3, 128, 128, 128), (2, 3, 33, 31, 70), (1, 4, 16, 24, 96), (1, 1, 32, 32, 32)])
@pytest.mark.parametrize("out_channels", [16, 64, 128])
@pytest.mark.parametrize("image", [torch.float32, torch.bfloat16])
def test_autocast_computes_what_the_library_does(shape, out_channels, image):
    """Operands would be rounded otherwise than autocast does, or the tensor cores' operands be misplaced."""
    x = draw(*shape, dtype=image)
    weight = (draw(out_channels, shape[1], 3, 3, 3, dtype=torch.float32, seed=1) / 9).requires_grad_()
    dy = draw(shape[0], out_channels, *shape[2:], seed=2)
    rounded, narrow = x.bfloat16().float(), weight.detach().bfloat16().float()
    with torch.autocast("cuda", torch.bfloat16):
        assert stem.declines(x, weight) is None
        y = stem_convolution(x, weight)
        stock = F.conv3d(x, weight, padding=1)
    assert (y.dtype, y.stride()) == (torch.bfloat16, dy.stride())
    exact = F.conv3d(rounded, narrow, padding=1)
    assert rms_error(y, exact) <= 1.01 * max(rms_error(stock, exact), 2e-3)
    # One rounding of the result, and none of the sums.
    assert ((y - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()
    found = torch.autograd.grad(y, weight, dy)[0]
    assert (found.dtype, found.stride()) == (torch.float32, weight.stride())
    assert rms_error(found, weight_gradient(dy.float(), rounded, narrow)) < 1e-5
    assert rms_error(found, weight_gradient(dy.float(), rounded.roll(1, -1), narrow)) > 0.1, "control"


def test_repeated_runs_give_the_same_bits():
    """A race: an operand overwritten while a product still reads it shows in one run of several only."""
    x, dy = draw(1, 3, 128, 128, 128, dtype=torch.float32), draw(1, 64, 128, 128, 128, seed=1)
    weight = draw(64, 3, 3, 3, 3, dtype=torch.float32, seed=2).requires_grad_()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            y = stem_convolution(x, weight)
        return y.detach(), torch.autograd.grad(y, weight, dy)[0]

    first = step()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(step(), first, strict=True))


def test_offsets_beyond_32_bits():
    """An offset of the output, here of 2**31 elements, would wrap, and the last planes be written elsewhere."""
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of device memory")
    x = draw(1, 3, 258, 256, 256)
    weight = (draw(128, 3, 3, 3, 3, seed=1) / 9).requires_grad_()
    dy = draw(1, 128, 258, 256, 256, seed=2)
    y = stem_convolution(x, weight)
    assert y.numel() > 2**31
    last = stem_convolution(x[:, :, -4:], weight)
    assert torch.equal(y[:, :, -3:], last[:, :, -3:])
    # The gradient of the last planes alone: all others' is zero.
    dy[:, :, :-3] = 0
    found = torch.autograd.grad(y, weight, dy)[0]
    assert rms_error(found, torch.autograd.grad(last, weight, dy[:, :, -4:])[0]) < 5e-3


def test_compiled_stem_gives_the_same_bits():
    """Under ``torch.compile`` the operator would be traced into, or promise other strides than it has."""
    x, dy = draw(1, 3, 32, 32, 64, dtype=torch.float32), draw(1, 64, 32, 32, 64, seed=1)
    weight = draw(64, 3, 3, 3, 3, dtype=torch.float32, seed=2).requires_grad_()

    def step(function):
        with torch.autocast("cuda", torch.bfloat16):
            y = function(x, weight)
        return y.detach(), torch.autograd.grad(y, weight, dy)[0]

    found = step(torch.compile(stem_convolution, fullgraph=True))
    assert all(torch.equal(a, b) for a, b in zip(found, step(stem_convolution), strict=True))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_slabs_are_as_accurate_as_one_call(count):
    """A slab would miss a plane, or its partial result in bfloat16 cost more than one rounding."""
    x, weight = draw(1, 64, 40, 64, 64), draw(32, 64, 3, 3, 3, seed=1).requires_grad_()
    dy = draw(1, 32, 40, 64, 64, seed=2)
    exact = weight_gradient(dy.float(), x.float(), weight.float())
    found = [torch.autograd.grad(convolution3(x, weight, count), weight, dy)[0] for _ in range(4)]
    assert rms_error(found[0], exact) < 2 * max(rms_error(weight_gradient(dy, x, weight), exact), 2e-3)
    assert all(torch.equal(found[0], again) for again in found)


def test_slabs_copy_no_activation():
    """A slab that is not dense would be copied whole before the library's call."""
    x, weight, dy = draw(1, 32, 64, 128, 128), draw(32, 32, 3, 3, 3, seed=1), draw(1, 32, 64, 128, 128, seed=2)
    plain = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    slabs.slab_weight_gradient(dy, x, weight, 2)
    own = torch.cuda.max_memory_allocated() - plain
    torch.cuda.reset_peak_memory_stats()
    weight_gradient(dy, x, weight)
    whole = torch.cuda.max_memory_allocated() - plain
    assert own <= max(whole, 0.1 * x.nbytes)
