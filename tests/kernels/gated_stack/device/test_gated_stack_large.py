"""What only a GPU can show: sizes of production, memory, and races."""

import kernel_needs
import pytest
import torch
from layer_case import LayerCase
from stack_cases import make_stack, random_like_output
from tensors import relative_error, same_bits

from scaffold.kernels.gated_stack import driver, gated_stack, model, plan, reference
from scaffold.kernels.gated_stack.layout import StackDims

pytestmark = kernel_needs.GPU

PRECISIONS = ("ieee", "tf32x3")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 32, 2), (1, 32, 1), (2, 32, 2), (6, 32, 1), (3, 16, 2), (6, 16, 1)], ids=str)
def test_fused_paths_equal_the_relay_over_many_tiles(shape, precision):
    """Thousands of programs at once would disturb one another, or a shape's tiles would round otherwise."""
    case = LayerCase(*shape, 20_000, device="cuda", precision=precision)
    relay = case.run("relay")
    assert relative_error(relay, case.exact()) < 1e-6
    for path in ("fused", "panel"):
        assert same_bits(case.run(path), relay), path


@pytest.mark.parametrize("precision", PRECISIONS)
def test_repeated_runs_give_the_same_bits(precision):
    """A race: an operand overwritten while a product still reads it shows in one run of several only."""
    case = LayerCase(6, 32, 1, 300_000, device="cuda", precision=precision)
    first = case.run("relay")
    for _ in range(12):
        for path in ("relay", "fused", "panel"):
            assert same_bits(case.run(path), first), path


@pytest.mark.parametrize("path", ["relay", "fused", "panel"])
def test_offsets_beyond_32_bits(path):
    """An offset would wrap at 2**31 elements, and the last rows be read from or written to elsewhere."""
    n_edge, tail = 9_700_000, 1000
    if torch.cuda.mem_get_info()[0] < 70e9:
        pytest.skip("needs 70 GB of device memory")
    dims = StackDims(1, n_edge, 2, 32, 1)
    assert n_edge * dims.row > 2**31
    stack = make_stack(StackDims(1, 1, 2, 32, 1), scale=False, device="cuda")
    grad, z = (torch.randn((1, n_edge, dims.row), device="cuda") for _ in range(2))
    out = torch.full_like(grad, float("nan"))
    small = StackDims(1, tail, 2, 32, 1)

    def run(sizes, grad, z, out):
        walk = driver.Backward(None, stack["w0"], stack["w1"], stack["gw"], sizes, "ieee")
        if path == "relay":
            gates = grad.new_empty((*grad.shape[:2], sizes.gate_width))
            walk.relay(0, grad, z, out, gates, torch.empty_like(grad))
        else:
            getattr(walk, path)(0, grad, z, out)
        return out

    run(dims, grad, z, out)
    last = [tensor[:, -tail:].contiguous() for tensor in (grad, z)]
    assert same_bits(out[:, -tail:].contiguous(), run(small, *last, torch.full_like(last[0], float("nan"))))
    assert not out[:, :: n_edge // 1000].isnan().any()


def test_fused_backward_allocates_no_surface():
    """The fused kernels would still need the relay's two surfaces, or a third gradient buffer."""
    dims = StackDims(2, 100_000, 3, 32, 2)
    stack = make_stack(dims, device="cuda")
    grad_y, z_all = random_like_output(dims, device="cuda"), torch.randn((2, *stack["u0"].shape), device="cuda")
    walk = driver.Backward(stack["scale"], stack["w0"], stack["w1"], stack["gw"], dims, "ieee")
    peaks = {}
    for path in ("relay", "fused", "panel"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        walk.run(path, grad_y, z_all)
        peaks[path] = torch.cuda.max_memory_allocated() - before
    surface = stack["u0"].nbytes
    for path in ("fused", "panel"):
        assert peaks[path] == pytest.approx(2 * surface, rel=0.01)
        assert peaks["relay"] - peaks[path] == pytest.approx(model.scratch_bytes("relay", dims), rel=0.01)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiled_stack_gives_the_same_bits(precision, monkeypatch):
    """Under ``torch.compile`` the operator would be traced into, or the switch ignored while tracing."""
    monkeypatch.setenv(plan.SWITCH, "1")
    dims = StackDims(2, 3000, 3, 32, 2)
    stack = make_stack(dims, device="cuda", requires="u0 scale")
    grad_y = random_like_output(dims, device="cuda")

    def step(**tensors):
        return gated_stack(**tensors, lmax=3, precision=precision)

    inputs = [stack["u0"], stack["scale"]]
    with driver.record_launches() as launches:
        wanted = torch.autograd.grad(step(**stack), inputs, grad_y)
    assert launches.count("panel_vector") == 2
    with driver.record_launches() as launches:
        found = torch.autograd.grad(torch.compile(step, fullgraph=True)(**stack), inputs, grad_y)
    assert launches.count("panel_vector") == 2
    for gradient, right in zip(found, wanted, strict=True):
        assert same_bits(gradient, right)


def test_whole_stack_against_float64():
    """A production-like stack would lose digits over its layers."""
    dims = StackDims(2, 5000, 3, 32, 3)
    stack = make_stack(dims, device="cuda", requires="u0 w0 w1 gw scale")
    double = {name: tensor.detach().double().requires_grad_() for name, tensor in stack.items()}
    grad_y = random_like_output(dims, device="cuda")
    names = ["u0", "w0", "w1", "gw", "scale"]
    exact = reference.forward(*[double[name] for name in names], dims).y
    wanted = torch.autograd.grad(exact, [double[name] for name in names], grad_y.double())
    plain = reference.forward(*[stack[name] for name in names], dims).y
    budgets = torch.autograd.grad(plain, [stack[name] for name in names], grad_y)
    for precision in PRECISIONS:
        y = gated_stack(**stack, lmax=3, precision=precision)
        found = torch.autograd.grad(y, [stack[name] for name in names], grad_y)
        for name, gradient, right, budget in zip(names, found, wanted, budgets, strict=True):
            assert relative_error(gradient, right) < 3 * relative_error(budget, right), (name, precision)
