"""What only a GPU can show: the size at which atomics vary, offsets beyond 32 bits, graphs, compilation."""

import kernel_needs
import pytest
import torch
import torch.nn.functional as F
from sums_case import PLAIN, cotangent_for, found
from tensors import LAST

from scaffold.kernels import segmentation_sums
from scaffold.kernels.segmentation import op, reference

pytestmark = kernel_needs.GPU


def volume(edge=128, classes=6, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(3)
    shape = (edge, edge, edge)
    logits = torch.randn((1, classes, *shape), device="cuda", generator=generator)
    labels = torch.randint(0, classes, (1, *shape), device="cuda", generator=generator, dtype=torch.uint8)
    return logits.to(dtype).contiguous(memory_format=LAST), labels, torch.rand(classes, device="cuda") + 0.1


def test_a_hundred_calls_give_one_result_where_atomics_give_several():
    """Hazard 9. The size matters: below 96^3 the blocks of the fused sum do not collide, above it they do."""
    logits, labels, weights = volume()
    log_p = F.log_softmax(logits.float(), dim=1)
    fused = {F.nll_loss(log_p, labels.long(), weights, reduction="sum").item() for _ in range(100)}
    assert len(fused) > 1, "control: the fused sum varies"
    cotangent = cotangent_for(logits)
    first = found(op.triton, logits, labels, weights, cotangent)
    for _ in range(100):
        assert all(
            torch.equal(a, b) for a, b in zip(found(op.triton, logits, labels, weights, cotangent), first, strict=True)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", [LAST, PLAIN])
@pytest.mark.parametrize("classes", [2, 5, 6])
def test_thousands_of_tiles_against_float64(classes, layout, dtype):
    """Programs would disturb one another; or sums of a million voxels lose digits."""
    logits, labels, weights = volume(classes=classes, dtype=dtype)
    logits = logits.contiguous(memory_format=layout)
    cotangent = cotangent_for(logits)
    sums, gradient = found(op.triton, logits, labels, weights, cotangent)
    exact = logits.double().requires_grad_()
    right = reference.eager(exact, labels, weights.double())
    (right_gradient,) = torch.autograd.grad(right, exact, cotangent.double())
    torch.testing.assert_close(sums.double(), right.detach(), rtol=1e-5, atol=0)
    # Rounded to nearest: half a unit in the last place of each value.
    tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 4e-6}[dtype]
    torch.testing.assert_close(gradient.double(), right_gradient, rtol=1.01 * tolerance, atol=2e-6)


@pytest.mark.parametrize("layout", [LAST, PLAIN])
def test_offsets_beyond_32_bits(layout):
    """An offset would wrap at 2**31 elements; with classes in planes, already the start of a class does."""
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of device memory")
    shape, tail = (800, 700, 700), 3
    logits = torch.empty((1, 6, *shape), device="cuda", dtype=torch.bfloat16, memory_format=layout).normal_()
    labels = torch.randint(0, 6, (1, *shape), device="cuda", dtype=torch.uint8)
    weights = torch.rand(6, device="cuda")
    assert logits.numel() > 2**31
    cotangent = cotangent_for(logits)
    sums, gradient = found(op.triton, logits, labels, weights, cotangent)
    last = logits[:, :, -tail:].contiguous(memory_format=layout)
    _, right = found(op.triton, last, labels[:, -tail:].contiguous(), weights, cotangent)
    assert torch.equal(gradient[:, :, -tail:], right)
    parts = [
        op.triton(a.contiguous(memory_format=layout), b.contiguous(), weights).double()
        for a, b in zip(logits.split(100, 2), labels.split(100, 1), strict=True)
    ]
    torch.testing.assert_close(sums.double(), sum(parts), rtol=1e-5, atol=0)


def step(logits, labels, weights):
    sums = segmentation_sums(logits, labels, weights)
    return sums, torch.autograd.grad((sums * sums.detach().cos()).sum(), logits)[0]


def test_replayed_graph_gives_the_same_bits():
    """A wait for the device would end the capture, a host decision would be frozen in it."""
    logits, labels, weights = volume(edge=64)
    logits.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(logits, labels, weights)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(logits, labels, weights)
    with torch.no_grad():
        logits.copy_(logits.flip(2))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(logits, labels, weights), strict=True))


def test_compiled_gives_the_same_bits():
    """``torch.compile`` would break the graph, or trace into the operator."""
    logits, labels, weights = volume(edge=64)
    logits.requires_grad_()

    def sums(logits, labels, weights):
        return segmentation_sums(logits, labels, weights)

    cotangent = cotangent_for(logits)
    compiled = found(torch.compile(sums, fullgraph=True), logits, labels, weights, cotangent)
    plain = found(sums, logits, labels, weights, cotangent)
    assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))
