"""The fused kernels give the relay's bits, and both are accurate."""

import pytest
import torch
from layer_case import LayerCase
from mutants import mutant
from stack_cases import make_stack, random_like_output
from tensors import relative_error, same_bits

from scaffold.kernels.gated_stack import driver, gated_stack_forward, gated_stack_input_grad, kernels, plan, reference
from scaffold.kernels.gated_stack.layout import StackDims

PRECISIONS = ("ieee", "tf32x3")
FUSED = ("fused", "panel")
SHAPES = [(1, 32, 1, 33), (2, 32, 2, 1), (3, 32, 1, 65), (3, 16, 2, 31), (6, 16, 1, 17)]
"""L, C, F, E: below, at and above a tile's 16, 32 or 64 rows; blocks that tiles divide, and others."""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_paths_equal_the_relay_bit_for_bit(shape, precision, device):
    """The fused kernels would round otherwise than the relay, skip a column, or write past a surface."""
    case = LayerCase(*shape, device=device, precision=precision)
    relay = case.run("relay")
    assert not relay.isnan().any(), "the relay left columns unwritten"
    for path in FUSED:
        assert same_bits(case.run(path), relay), path


@pytest.mark.parametrize("n_edge", [1, 15, 16, 17, 157])
def test_bits_agree_at_the_edges_of_a_tile(n_edge, device):
    """A program would treat the last, partly filled tile of rows differently."""
    case = LayerCase(1, 16, 2, n_edge, device=device)
    relay = case.run("relay")
    assert all(same_bits(case.run(path), relay) for path in FUSED)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bits_agree_for_nan_infinities_and_signed_zeros(precision, device):
    """A fused kernel would order or drop operations that only special values tell apart."""
    case = LayerCase(3, 32, 1, 40, device=device, precision=precision, hard=True)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 200.0, -200.0], device=device)
    case.grad[0, :7, 5] = special
    case.z[0, 8:15, 3] = special
    case.z[0, 16:23, 40] = special
    case.grad[0, 24] = -0.0
    relay = case.run("relay")
    assert relay.isnan().any()
    assert all(same_bits(case.run(path), relay) for path in FUSED)
    untouched = [row for row in range(40) if not (row < 7 or 8 <= row < 15 or 16 <= row < 23)]
    assert relay[0, untouched].isfinite().all(), "a special value leaked into another row"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("path", ["relay", *FUSED])
@pytest.mark.parametrize("hard", [False, True])
def test_error_is_within_that_of_plain_float32(path, precision, hard, device):
    """A path would lose digits: its error may be at most twice that of the float32 reference."""
    case = LayerCase(2, 32, 1, 40, device=device, precision=precision, hard=hard)
    exact = case.exact()
    weights = [case.stack[name][0] for name in ("w0", "w1", "gw")]
    plain = reference.layer_gradient(case.grad, case.z, *weights, case.dims).grad_u
    budget = 2 * max(relative_error(plain, exact), 1e-7)
    assert relative_error(case.run(path), exact) < budget
    # What single-pass tf32 would give: an error that this budget refuses.
    coarse = ((case.grad.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    rough = reference.layer_gradient(coarse, case.z, *weights, case.dims).grad_u
    assert relative_error(rough, exact) > 10 * budget


@pytest.mark.parametrize("path", ["relay", *FUSED])
def test_rows_depend_neither_on_their_number_nor_on_their_place(path, device):
    """A row's gradient would change with the batch that it is computed in."""
    whole = LayerCase(2, 32, 1, 50, device=device)
    part = LayerCase(2, 32, 1, 20, device=device)
    part.stack = whole.stack
    part.grad, part.z = whole.grad[:, 23:43].contiguous(), whole.z[:, 23:43].contiguous()
    result = whole.run(path)
    assert same_bits(result[:, 23:43].contiguous(), part.run(path))
    assert same_bits(result, whole.run(path))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("n_gated", "scale"), [(0, True), (1, False), (3, True)])
def test_whole_backward_has_equal_bits_and_the_expected_launches(n_gated, scale, precision, device):
    """Layers would be walked in another order, or scaled twice, or a path would not run what it promises."""
    dims = StackDims(2, 19, 2, 16, n_gated)
    stack = make_stack(dims, scale=scale, device=device)
    arguments = {"lmax": dims.lmax, "precision": precision}
    with torch.no_grad():
        y, z_all, _ = gated_stack_forward(**stack, **arguments)
    grad_y = random_like_output(dims, device=device)
    weights = [stack.get(name) for name in ("scale", "w0", "w1", "gw")]
    found, launches = {}, {}
    for path in ("relay", *FUSED):
        with driver.record_launches() as launches[path]:
            found[path] = gated_stack_input_grad(grad_y, y, z_all, *weights, **arguments, backward=path)
    head, tail = ["gemm"], ["scale_gradient"] if scale else []
    assert launches["relay"] == head + ["gate", "pointwise", "gemm"] * n_gated + tail
    assert launches["fused"] == head + ["tiled", "tiled"] * n_gated + tail
    assert launches["panel"] == head + ["panel_scalar", "panel_vector"] * n_gated + tail
    for path in FUSED:
        assert same_bits(found[path].grad_u0, found["relay"].grad_u0)
        assert not scale or same_bits(found[path].grad_scale, found["relay"].grad_scale)

    double = {name: tensor.double().requires_grad_() for name, tensor in stack.items()}
    exact = reference.forward(*[double.get(name) for name in ("u0", "w0", "w1", "gw", "scale")], dims)
    wanted = [double["u0"]] + ([double["scale"]] if scale else [])
    exact_gradients = torch.autograd.grad(exact.y, wanted, grad_y.double())
    assert relative_error(y, exact.y) < 1e-6
    for gradient, exact_gradient in zip(found["relay"][: len(wanted)], exact_gradients, strict=True):
        assert relative_error(gradient, exact_gradient) < 1e-6


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 32, 1, 33), (1, 16, 2, 20), (6, 16, 1, 9), (1, 64, 1, 5)], ids=str)
def test_forward_matches_float64(shape, precision, device):
    """The forward's kernels would misplace gates between their two launches, or leave a column unwritten."""
    lmax, channels, n_focus, n_edge = shape
    dims = StackDims(n_focus, n_edge, lmax, channels, 2)
    stack = make_stack(dims, device=device)
    with driver.record_launches() as launches:
        found = gated_stack_forward(**stack, lmax=lmax, precision=precision)
    assert launches == ["forward_scalar", "forward_vector"] * 2 + ["gemm"]
    exact = reference.forward(*[stack[name].double() for name in ("u0", "w0", "w1", "gw", "scale")], dims)
    for tensor, exact_tensor in zip(found, exact, strict=True):
        assert relative_error(tensor, exact_tensor) < 1e-6


@pytest.mark.parametrize("path", ["relay", *FUSED])
def test_no_rows_launch_nothing(path, device):
    """An empty edge list would launch an empty grid, which CUDA refuses."""
    dims = StackDims(2, 0, 2, 16, 2)
    stack = make_stack(dims, device=device)
    with driver.record_launches() as launches:
        y, z_all, u_last = gated_stack_forward(**stack, lmax=2)
        weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
        found = gated_stack_input_grad(torch.empty_like(y), y, z_all, *weights, lmax=2, backward=path)
    assert launches == []
    assert (y.shape, z_all.shape, u_last.shape) == ((0, 2, dims.row), (2, 2, 0, dims.row), (2, 0, dims.row))
    assert (found.grad_u0.shape, found.grad_scale.shape) == ((2, 0, dims.row), (0, 2))


def test_gradient_of_a_tiny_scale_is_exact(device):
    """The division by the scale would be clamped, as at 1e-12, and tiny scales would get no gradient."""
    dims = StackDims(1, 3, 1, 16, 0)
    stack = make_stack(dims, device=device)
    stack["scale"] = torch.full((3, 1), 1e-20, device=device)
    grad_y = random_like_output(dims, device=device)
    y, z_all, _ = gated_stack_forward(**stack, lmax=1)
    weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
    found = gated_stack_input_grad(grad_y, y, z_all, *weights, lmax=1, backward="relay").grad_scale
    ones = torch.ones((3, 1), device=device, dtype=torch.float64)
    exact = reference.forward(*[stack[name].double() for name in ("u0", "w0", "w1", "gw")], ones, dims).y
    assert relative_error(found, (grad_y * exact).sum(-1)) < 1e-5


MUTATIONS = {
    "scalar first in the relay": ("C, 0, M0, BLOCK_M, BLOCK_N", "0, 0, M0, BLOCK_M, BLOCK_N"),
    "gate of another degree": ("M0 + G + tl.multiple_of(k0 % G,", "M0 + G + tl.multiple_of((k0 + BLOCK_K) % G,"),
    "residual left out": ("acc + tl.load(grad + offsets, mask=mask, other=0.0), mask=mask)", "acc, mask=mask)"),
    "stripes added in another order": (
        "h = tl.fma(_load(grad, c0 + G, rows_left, R, BLOCK_M), _load(z, c0 + G, rows_left, R, BLOCK_M), h)\n",
        "h = tl.fma(_load(grad, c0 + 2 * G, rows_left, R, BLOCK_M), _load(z, c0 + 2 * G, rows_left, R, BLOCK_M), h)\n",
    ),
    "halves of the head swapped": ("left, right = _halves(head)", "right, left = _halves(head)"),
    "last row tile unmasked": (
        "mask = (rows[:, None] < rows_left) & (columns[None, :] < WIDTH)\n    offsets = rows[:, None] * R + F",
        "mask = (rows[:, None] < BLOCK_M) & (columns[None, :] < WIDTH)\n    offsets = rows[:, None] * R + F",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_kernel_is_noticed(name, tmp_path, monkeypatch, device):
    """Control: the comparisons above would pass although a kernel computes something else."""
    case = LayerCase(3, 32, 1, 21, device=device)
    assert same_bits(case.run("panel"), case.run("relay"))
    old, new = MUTATIONS[name]
    wrong = mutant(kernels, old, new, monkeypatch, tmp_path)
    # The shared helpers change for one side only.
    mutated = ("gemm_kernel",) if "relay" in name else ("panel_scalar_kernel", "panel_vector_kernel")
    relay = case.run("relay")
    for kernel in mutated:
        monkeypatch.setattr(kernels, kernel, getattr(wrong, kernel))
    if "unmasked" in name:
        with pytest.raises(AssertionError, match="past its output"):
            case.run("panel")
        return
    found = [case.run(path) for path in ("relay", "panel")]
    assert not all(same_bits(tensor, relay) for tensor in found)


def test_another_k_tile_is_noticed(monkeypatch, device):
    """Control: the K tile would not matter to the bits, so that its guard could not be tested."""
    if device == "cuda":
        pytest.skip("on a GPU a chain of fused multiply-adds does not depend on the K tile")
    case = LayerCase(3, 32, 1, 21, device=device)
    fused = case.run("panel")
    monkeypatch.setattr(driver, "K_TILE", 32)
    assert not same_bits(case.run("relay"), fused)


def test_tiles_change_no_bits(monkeypatch, device):
    """The tile table, which is tuned by time, would choose the result."""
    case = LayerCase(2, 32, 1, 20, device=device)
    relay = case.run("relay")
    for block_m, block_n in ((16, 32), (64, 64)):
        monkeypatch.setattr(driver, "tile_for", lambda *_, m=block_m, n=block_n: plan.Tile(m, n, 4, 2))
        for path in ("relay", *FUSED):
            assert same_bits(case.run(path), relay), (path, block_m, block_n)
