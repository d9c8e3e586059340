"""What only a GPU can show: production sizes, offsets beyond 32 bits, graphs, compilation."""

import kernel_needs
import pytest
import torch
import torch.nn.functional as F
from pointwise_case import exact_run, run
from tensors import LAST, relative_error

from scaffold.kernels import pointwise_convolution
from scaffold.kernels.convolution import pointwise

pytestmark = kernel_needs.GPU


def volume(edge, dtype=torch.bfloat16, inputs=64, outputs=6):
    generator = torch.Generator("cuda").manual_seed(4)

    def draw(*size):
        return torch.randn(size, device="cuda", generator=generator, dtype=torch.float32)

    x = draw(1, inputs, edge, edge, edge).to(dtype).contiguous(memory_format=LAST)
    gradient = draw(1, outputs, edge, edge, edge).to(dtype).contiguous(memory_format=LAST)
    return x, draw(outputs, inputs, 1, 1, 1) / 8, draw(outputs), gradient


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 6), (32, 3), (128, 9)])
def test_production_size_under_autocast(inputs, outputs, dtype):
    """Programs would disturb one another; or a sum over two million voxels lose digits."""
    case = volume(128, dtype, inputs, outputs)
    with torch.autocast("cuda", dtype):
        assert pointwise.declines(*case[:3]) is None
        ours = run(pointwise_convolution, *case)
    right = exact_run(*(tensor.to(dtype) for tensor in case))
    for name, mine, exact in zip(("output", "input"), ours, right, strict=False):
        torch.testing.assert_close(mine.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5, msg=name)
    for name, mine, exact in zip(("weight", "bias"), ours[2:], right[2:], strict=True):
        assert mine.dtype == torch.float32
        assert relative_error(mine, exact) < 3e-5, name
    first = ours
    for _ in range(20):
        with torch.autocast("cuda", dtype):
            again = run(pointwise_convolution, *case)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_offsets_beyond_32_bits():
    """An offset would wrap at 2**31 elements of x, and the last voxels be read from or written to elsewhere."""
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of device memory")
    _, weight, bias, _ = volume(2)
    weight, bias = weight.bfloat16(), bias.bfloat16()
    x = torch.empty((1, 64, 400, 300, 300), device="cuda", dtype=torch.bfloat16, memory_format=LAST).normal_()
    assert x.numel() > 2**31
    gradient = torch.empty((1, 6, 400, 300, 300), device="cuda", dtype=torch.bfloat16, memory_format=LAST).normal_()
    out, dx, dweight, _ = run(pointwise.triton, x, weight, bias, gradient)
    last = run(
        pointwise.triton, x[:, :, -2:].contiguous(memory_format=LAST), weight, bias,
        gradient[:, :, -2:].contiguous(memory_format=LAST),
    )  # fmt: skip
    assert torch.equal(out[:, :, -2:], last[0])
    assert torch.equal(dx[:, :, -2:], last[1])
    parts = [
        torch.einsum("ncdhw,nkdhw->kc", a.float(), b.float()).double()
        for a, b in zip(x.split(50, 2), gradient.split(50, 2), strict=True)
    ]
    assert relative_error(dweight.flatten(1), sum(parts)) < 1e-2


def step(x, weight, bias, gradient):
    with torch.autocast("cuda", torch.bfloat16):
        out = pointwise_convolution(x, weight, bias)
    return out, *torch.autograd.grad(out, (x, weight, bias), gradient)


def test_replayed_graph_gives_the_same_bits():
    """A wait for the device would end the capture, a host decision would be frozen in it."""
    *leaves, gradient = volume(64)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(*leaves, gradient)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*leaves, gradient)
    with torch.no_grad():
        leaves[0].copy_(leaves[0].flip(2))
        leaves[1].mul_(1.5)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(*leaves, gradient), strict=True))


def test_compiled_gives_the_same_bits():
    """``torch.compile`` would break the graph, or trace into the operator."""
    case = volume(64)

    def scores(x, weight, bias):
        with torch.autocast("cuda", torch.bfloat16):
            return pointwise_convolution(x, weight, bias)

    compiled, plain = run(torch.compile(scores, fullgraph=True), *case), run(scores, *case)
    assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))
    assert not torch.equal(plain[0], F.conv3d(case[0].float(), *case[1:3]).bfloat16()), "control: bits can differ"
