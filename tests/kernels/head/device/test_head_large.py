"""What only a GPU can show of the fused head: production sizes, offsets beyond 32 bits, graphs, compilation."""

import kernel_needs
import pytest
import torch
from head_case import NAMES, exact_run, run
from tensors import LAST, poisoned_memory, relative_error, same_bits

from scaffold.kernels.head import launch, op, plan

pytestmark = kernel_needs.GPU


@pytest.fixture(autouse=True)
def _launches_of_production(monkeypatch, _small):
    monkeypatch.setattr(launch, "plan", plan.plan)


def site(channels, edge, classes=6, dtype=torch.bfloat16):
    """Random inputs made on the device, parameters float32 as under autocast, and a gradient of the logits."""
    torch.manual_seed(channels)
    x = torch.empty((1, channels, edge, edge, edge), dtype=dtype, device="cuda", memory_format=LAST).normal_(0.5, 2)
    weight = torch.randn((classes, channels, 1, 1, 1), device="cuda") / channels**0.5
    gradient = torch.empty((1, classes, edge, edge, edge), dtype=dtype, device="cuda", memory_format=LAST).normal_()
    norm = torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
    return (x, *norm, weight, torch.randn(classes, device="cuda")), gradient


def relative(found, exact):
    """Error relative to the exact values, as root mean squares."""
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("channels", "edge", "classes"), [(64, 128, 6), (64, 33, 6), (128, 64, 32), (16, 96, 2)])
def test_production_size_under_autocast(channels, edge, classes, dtype):
    """Programs would disturb one another; or a sum over millions of voxels lose digits."""
    inputs, gradient = site(channels, edge, classes, dtype)
    with torch.autocast("cuda", dtype):
        assert op.declines(*inputs, 8) is None
        found = run(inputs, gradient, 8)
        separate = run(inputs, gradient, 8, op.separate)
    exact = exact_run(inputs, gradient, 8)
    budget = {torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]
    for name, ours, theirs, right in zip(NAMES, found, separate, exact, strict=True):
        # A gate at zero may fall otherwise than in float64.
        assert relative(ours, right) < max(budget, 1.1 * relative(theirs, right)), name
    # The last bit apart, where float32 sums in another order are rounded.
    assert relative(found[0], separate[0].double()) < budget / 8
    assert relative(found[0], exact[0] + 0.05) > budget, "control"
    with poisoned_memory(), torch.autocast("cuda", dtype):
        for _ in range(20):
            assert all(same_bits(a, b) for a, b in zip(run(inputs, gradient, 8), found, strict=True))


@pytest.mark.parametrize(("channels", "shape", "period"), [(128, (256, 256, 256), 8), (64, (512, 512, 512), 8)])
def test_offsets_beyond_32_bits(channels, shape, period):
    """An offset would wrap at 2**31 elements, and the last voxels be read from or written to elsewhere."""
    depth, height, width = shape
    numel = channels * depth * height * width
    if torch.cuda.mem_get_info()[0] < 2.6 * 2 * numel:
        pytest.skip(f"needs {5.2 * numel / 1e9:.0f} GB of device memory")
    assert numel >= 2**31
    inputs, _ = site(channels, 2)
    x = torch.empty((1, channels, *shape), dtype=torch.bfloat16, device="cuda", memory_format=LAST)
    gradient = torch.empty((1, 6, *shape), dtype=torch.bfloat16, device="cuda", memory_format=LAST)
    # Planes that repeat: each result must be that of the first period.
    for tensor in (x, gradient):
        tensor[:, :, :period].normal_()
        for start in range(period, depth, period):
            tensor[:, :, start : start + period] = tensor[:, :, :period]
    small = x[:, :, :period].contiguous(memory_format=LAST), gradient[:, :, :period].contiguous(memory_format=LAST)
    with torch.autocast("cuda", torch.bfloat16):
        logits, dx, *parameters = run((x, *inputs[1:]), gradient, 8)
        exact = run((small[0], *inputs[1:]), small[1], 8)
    for found, right in ((logits, exact[0]), (dx, exact[1])):
        assert relative(found[:, :, :period], right.double()) < 2e-3
        for start in (depth // 2 // period * period, depth - period):
            assert torch.equal(found[:, :, start : start + period], found[:, :, :period])
    for name, found, right in zip(NAMES[2:], parameters, exact[2:], strict=True):
        assert relative_error(found, right * (depth / period)) < 2e-3, name


def step(inputs, gradient):
    with torch.autocast("cuda", torch.bfloat16):
        logits = op.group_norm_relu_pointwise(*inputs, 8)
    return logits, *torch.autograd.grad(logits, inputs, gradient)


def test_replayed_graph_gives_the_same_bits():
    """A wait for the device would end the capture, a host decision would be frozen in it."""
    inputs, gradient = site(64, 64)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(leaves, gradient)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            captured = step(leaves, gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.no_grad():
        leaves[0].copy_(leaves[0].flip(2) * 1.5)
        leaves[3].mul_(1.5)
    graph.replay()
    assert all(same_bits(a, b) for a, b in zip(captured, step(leaves, gradient), strict=True))


def test_compiled_gives_the_same_bits():
    """``torch.compile`` would break the graph, or trace into the operator."""
    inputs, gradient = site(64, 32)
    leaves = [tensor.requires_grad_() for tensor in inputs]

    def logits(*tensors):
        with torch.autocast("cuda", torch.bfloat16):
            return op.group_norm_relu_pointwise(*tensors, 8)

    out = torch.compile(logits, fullgraph=True)(*leaves)
    found = out, *torch.autograd.grad(out, leaves, gradient)
    assert all(same_bits(a, b) for a, b in zip(found, step(leaves, gradient), strict=True))
