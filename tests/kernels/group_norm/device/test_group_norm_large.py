"""What only a GPU can show: sizes of production, bfloat16 as hardware rounds it, races, graphs."""

import kernel_needs
import pytest
import torch
from norm_cases import everything, make_case, random_like, with_gradients
from tensors import LAST, poisoned_memory, relative_error, same_bits

from scaffold.kernels.group_norm import group_norm_relu, group_norm_relu_pool, launch, op

pytestmark = kernel_needs.GPU

SITES = [(64, 128), (128, 64), (256, 32), (512, 32), (1024, 16), (2048, 8)]
"""Channels and edge of every level of the networks of scale 7 and 8, but the largest."""


def site(channels, edge, dtype=torch.bfloat16):
    """Random inputs made on the device, with a mean as convolutions leave one."""
    torch.manual_seed(channels)
    x = torch.empty((1, channels, edge, edge, edge), dtype=dtype, device="cuda", memory_format=LAST)
    return x.normal_(0.5, 2), torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")


def random_on_device(*outputs):
    return [torch.empty_like(output).normal_() for output in outputs]


def relative(found, exact):
    """Error relative to the exact values, as root mean squares."""
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("channels", "edge"), SITES)
def test_every_level_against_float64(channels, edge, dtype):
    """The plan of a level would leave out, repeat or mix up voxels."""
    inputs = site(channels, edge, dtype)
    assert op.declines(*inputs, 8) is None
    dy = random_on_device(inputs[0])
    double = [tensor.double() for tensor in inputs]
    exact, exact_gradients = with_gradients(lambda *t: op.eager(*t, 8), double, [dy[0].double()])
    found, gradients = with_gradients(lambda *t: group_norm_relu(*t, 8), inputs, dy)
    budget = {torch.bfloat16: 2.5e-3, torch.float16: 3e-4, torch.float32: 1e-6}[dtype]
    assert relative(found[0], exact[0]) < budget
    # A pre-activation at zero may be rounded to the other side, and the gradient with it.
    pre = torch.nn.functional.group_norm(double[0], 8, double[1], double[2], 1e-5)
    clear = pre.abs() > 1e-5 * pre.abs().max()
    assert clear.double().mean() > 0.999
    assert relative(gradients[0] * clear, exact_gradients[0] * clear) < budget
    for ours, right in zip(gradients[1:], exact_gradients[1:], strict=True):
        assert relative(ours, right) < 1e-3
    rough = op.eager(double[0], double[1], double[2] + 0.01, 8)
    assert relative(rough, exact[0]) > budget, "control: a wrong bias is noticed"


@pytest.mark.parametrize(("channels", "edge"), [(64, 128), (256, 32), (96, 30), (64, 33)])
def test_pooling_at_size(channels, edge):
    """Thousands of windows in rows that tiles do not divide would be addressed wrongly."""
    inputs = site(channels, edge, torch.float32)
    gradients = random_on_device(*group_norm_relu_pool(*inputs, 8))
    wide = torch.cat((gradients[0], gradients[0] * 0), 1).contiguous(memory_format=LAST)
    gradients[0] = wide[:, :channels]
    assert launch.readable(gradients[0]) is gradients[0]
    double = [tensor.double() for tensor in inputs]
    exact, right = with_gradients(lambda *t: op.eager_pool(*t, 8), double, [g.double() for g in gradients])
    found, ours = with_gradients(lambda *t: group_norm_relu_pool(*t, 8), inputs, gradients)
    for a, b in zip(found + ours, exact + right, strict=True):
        # A few gates and maxima fall otherwise than in float64.
        assert relative(a, b) < 1e-3
    assert same_bits(found[1], torch.nn.functional.max_pool3d(found[0], 2))


@pytest.mark.parametrize("call", [group_norm_relu, group_norm_relu_pool])
def test_repeated_runs_give_the_same_bits(call):
    """A race, or a sum whose order depends on the schedule, shows in one run of many."""
    inputs = site(64, 128)
    outputs = call(*inputs, 8)
    gradients = random_on_device(*(outputs if isinstance(outputs, tuple) else [outputs]))
    first = everything(lambda *t: call(*t, 8), inputs, gradients)
    with poisoned_memory():
        for _ in range(20):
            again = everything(lambda *t: call(*t, 8), inputs, gradients)
            assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


def test_offsets_beyond_32_bits():
    """An offset would wrap at 2**31 elements: one sample here has more."""
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB of device memory")
    channels, depth = 128, 264
    x = torch.empty((1, channels, depth, 256, 256), dtype=torch.bfloat16, device="cuda", memory_format=LAST)
    assert x.numel() > 2**31
    # Planes that repeat: every output plane must be that of the first period.
    period = torch.randn((1, channels, 8, 256, 256), device="cuda").bfloat16()
    for start in range(0, depth, 8):
        x[:, :, start : start + 8] = period
    weight, bias = torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
    small, _ = op._forward_op(period.contiguous(memory_format=LAST), weight, bias, 8, 1e-5)
    y, _ = op._forward_op(x, weight, bias, 8, 1e-5)
    for start in (0, depth // 2 // 8 * 8, depth - 8):
        part = y[:, :, start : start + 8]
        assert torch.equal(part, y[:, :, :8])
        torch.testing.assert_close(part, small, rtol=2**-7, atol=1e-4)
    (dx,) = torch.autograd.grad(group_norm_relu(x.requires_grad_(), weight, bias, 8), x, y)
    for start in (depth // 2 // 8 * 8, depth - 8):
        assert torch.equal(dx[:, :, start : start + 8], dx[:, :, :8])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_calls_agree_with_eager_ones(dynamic):
    """``torch.compile`` would break the graph, or be promised other strides than it gets."""
    inputs = make_case((1, 32, 8, 12, 16), torch.bfloat16, device="cuda")

    def step(x, weight, bias):
        y, pooled = group_norm_relu_pool(x * 2, weight, bias, 8)
        return y + group_norm_relu(y, weight, bias, 8), pooled

    gradients = random_like(*step(*inputs))
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic)
    ours = everything(compiled, inputs, gradients)
    right = everything(step, inputs, gradients)
    for a, b in zip(ours, right, strict=True):
        # Sums outside the operators may be rounded at other places.
        assert relative_error(a, b) < 2**-7
        assert a.stride() == b.stride()
    torch.library.opcheck(op._pool_op, (*(t.requires_grad_() for t in inputs), 8, 1e-5))


def test_graph_replays_the_eager_bits_without_synchronising():
    """A host synchronisation, or scratch that is not the graph's own, would break captured steps."""
    inputs = site(64, 32)
    dy, dpooled = random_on_device(*group_norm_relu_pool(*inputs, 8))

    def run():
        y, pooled, argmax, statistics = op._pool_op(*inputs, 8, 1e-5)
        return y, pooled, *op._backward_op(dy, dpooled, argmax, *inputs, statistics, 8)

    right = run()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            found = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for tensor in found:
        tensor.zero_()
    graph.replay()
    assert all(same_bits(a, b) for a, b in zip(found, right, strict=True))
