"""The reference of the gated stack, which every kernel is compared with."""

import pytest
import torch
from stack_cases import make_stack, random_like_output

from scaffold.errors import UserError
from scaffold.kernels.gated_stack import gated_stack, gated_stack_forward, gated_stack_input_grad
from scaffold.kernels.gated_stack.layout import StackDims, dims_of
from scaffold.kernels.gated_stack.reference import WeightGradients, forward, head_gradient, layer_gradient

NAMES = ("u0", "w0", "w1", "gw", "scale")


def test_subtiles_of_a_group_are_those_its_gate_scales():
    """A gate would scale another degree: the three stripes are ordered by degree, each after the scalar."""
    dims = StackDims(1, 1, 3, 32, 1)
    assert (dims.row, dims.m0, dims.m1, dims.gate_width) == (320, 128, 192, 96)
    degrees = [0, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert [dims.gate_of_subtile(r) + 1 for r in range(1, 10)] == degrees[1:]
    with pytest.raises(ValueError, match="has no gate"):
        dims.gate_of_subtile(0)


@pytest.mark.parametrize("lmax", [1, 2, 6])
def test_every_subtile_is_summed_once(lmax):
    """The order of a contraction would skip or repeat a subtile."""
    dims = StackDims(1, 1, lmax, 16, 1)
    assert sorted(dims.k_order(0)) == list(range(lmax + 1))
    assert dims.k_order(0)[-1] == 0
    assert sorted(dims.k_order(1)) == list(range(2 * lmax))


def test_one_row_by_hand():
    """The formulas, with L = C = F = E = N = 1, written out."""
    u, w0, w1 = torch.tensor([2.0, 3.0, 5.0, 7.0]), torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[1.0, -1], [2, 1]])
    g, last0, last1, alpha = 0.5, torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([[2.0, 0], [0, 3]]), 0.25
    z = torch.tensor([2 + 9, 4 + 12, 5 + 14, -5 + 7.0])
    p, silu = torch.sigmoid(torch.tensor(11 * g)), 11 * torch.sigmoid(torch.tensor(11.0))
    v = u + torch.stack([silu, z[1] * p, z[2] * p, z[3] * p])
    y = alpha * (v + torch.stack([v[1], v[0], 2 * v[2], 3 * v[3]]))
    found = forward(
        u.view(1, 1, 4), torch.stack([w0, last0])[:, None], torch.stack([w1, last1])[:, None],
        torch.tensor(g).view(1, 1, 1, 1), torch.tensor([[alpha]]), StackDims(1, 1, 1, 1, 1),
    )  # fmt: skip
    assert torch.equal(found.z_all.view(4), z)
    assert torch.equal(found.u_last.view(4), v)
    torch.testing.assert_close(found.y.view(4), y, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("lmax", "n_gated", "scale"), [(1, 1, True), (2, 2, True), (2, 1, False), (1, 0, True)])
def test_gradients_of_all_outputs_are_right(lmax, n_gated, scale):
    """A gradient of y, of the pre-activations or of the last input would be wrong (finite differences)."""
    dims = StackDims(2, 2, lmax, 1, n_gated)
    stack = make_stack(dims, scale=scale, dtype=torch.float64, requires="u0 w0 w1 gw" + " scale" * scale)
    inputs = tuple(stack[name] for name in NAMES if name in stack)
    assert torch.autograd.gradcheck(lambda *tensors: gated_stack_forward(*tensors, lmax=lmax), inputs)


def test_second_derivative_is_right():
    """``create_graph=True`` would give a wrong second order (finite differences)."""
    dims = StackDims(1, 1, 1, 1, 1)
    stack = make_stack(dims, dtype=torch.float64, requires="u0 w0 w1 gw scale")
    inputs = tuple(stack[name] for name in NAMES)
    assert torch.autograd.gradgradcheck(lambda *tensors: gated_stack(*tensors, lmax=1), inputs)


@pytest.mark.parametrize("lmax", [1, 3])
def test_written_gradients_equal_autograd(lmax):
    """The formulas that the kernels implement would differ from the derivative of the forward."""
    dims = StackDims(2, 5, lmax, 3, 3)
    stack = make_stack(dims, dtype=torch.float64, requires="u0 w0 w1 gw scale")
    u0, w0, w1, gw, scale = (stack[name] for name in NAMES)
    outputs = forward(u0, w0, w1, gw, scale, dims)
    seeds = [torch.randn_like(output) for output in outputs]
    wanted = torch.autograd.grad(outputs, [u0, w0, w1, gw, scale], seeds)
    with torch.no_grad():
        weights = WeightGradients(u0, outputs.u_last, outputs.z_all, w0, w1, gw, dims)
        weights.last_layer(seeds[0], scale)
        g = head_gradient(seeds[0], w0[-1], w1[-1], scale, dims) + seeds[2]
        for layer in reversed(range(3)):
            z = outputs.z_all[layer]
            step = layer_gradient(g, z, w0[layer], w1[layer], gw[layer], dims, seeds[1][layer])
            weights.gated_layer(layer, step.grad_z, step.grad_logits)
            g = step.grad_u
    found = [g, weights.w0, weights.w1, weights.gw, (seeds[0] * outputs.y).sum(-1) / scale]
    for gradient, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-11, atol=1e-11)


def test_functional_backward_equals_autograd():
    """``gated_stack_input_grad`` would forget the scale, or return surfaces of another shape."""
    dims = StackDims(2, 4, 2, 3, 2)
    stack = make_stack(dims, dtype=torch.float64, requires="u0 scale")
    grad_y = random_like_output(dims, dtype=torch.float64)
    outputs = gated_stack_forward(**stack, lmax=2)
    wanted = torch.autograd.grad(outputs.y, [stack["u0"], stack["scale"]], grad_y)
    weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
    found = gated_stack_input_grad(grad_y, outputs.y, outputs.z_all, *weights, lmax=2, keep_surfaces=True)
    torch.testing.assert_close((found.grad_u0, found.grad_scale), wanted, rtol=1e-12, atol=1e-12)
    assert found.grad_z_all.shape == outputs.z_all.shape
    assert found.grad_logits_all.shape == (2, 2, 4, dims.gate_width)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("u0", (1, 2, 27), r"u0 has shape \(1, 2, 27\)"),
        ("w0", (2, 1, 8, 9), r"w0 has shape \(2, 1, 8, 9\); \(2, 1, 8, 8\) is needed"),
        ("w1", (3, 1, 8, 8), r"w1 has shape \(3, 1, 8, 8\); \(2, 1, 8, 8\) is needed"),
        ("gw", (2, 1, 4, 4), r"gw has shape \(2, 1, 4, 4\); \(1, 1, 4, 4\) is needed"),
    ],
)
def test_wrong_shape_names_tensor_and_shape_needed(name, shape, message):
    """A wrong shape would reach a kernel, which reads past the end."""
    shapes = {"u0": (1, 2, 16), "w0": (2, 1, 8, 8), "w1": (2, 1, 8, 8), "gw": (1, 1, 4, 4)}
    assert dims_of(*shapes.values(), lmax=1).channels == 4
    with pytest.raises(ValueError, match=message):
        dims_of(*(shapes | {name: shape}).values(), lmax=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": torch.ones(1, 2)}, r"scale has shape \(1, 2\); \(2, 1\) is needed"),
        ({"gw": torch.ones(1, 1, 1, 1, dtype=torch.float64)}, "gw is torch.float64 on cpu; torch.float32 on cpu"),
        ({"backward": "fast"}, "backward is 'fast'; allowed are 'auto'"),
        ({"precision": "tf32"}, "precision is 'tf32'; allowed are 'ieee', 'tf32x3'"),
    ],
)
def test_wrong_argument_is_refused(change, message):
    """A mistake would fall through to another path or to an unclear error."""
    stack = make_stack(StackDims(1, 2, 1, 1, 1))
    gated_stack(**stack, lmax=1)
    with pytest.raises(ValueError, match=message):
        gated_stack(**(stack | change), lmax=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gw": None}, "gw is None; a tensor is needed"),
        ({"scale": 2.0}, r"scale is 2\.0; a tensor is needed"),
        ({"lmax": 1.0}, r"lmax is 1\.0; an int is needed"),
    ],
)
def test_argument_of_a_wrong_type_is_named(change, message):
    """The user would see a KeyError or an AttributeError from inside."""
    stack = make_stack(StackDims(1, 2, 1, 1, 1))
    with pytest.raises(TypeError, match=message):
        gated_stack(**(stack | {"lmax": 1} | change))


def test_edge_major_output_is_told_from_focus_major():
    """An output in the layout of u0 would be blamed on the weights."""
    dims = StackDims(2, 3, 1, 2, 1)
    stack = make_stack(dims)
    y, z_all, _ = gated_stack_forward(**stack, lmax=1)
    weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
    with pytest.raises(ValueError, match=r"y has shape \(2, 3, 8\); \(E, F, R\) is needed, edges first"):
        gated_stack_input_grad(y.transpose(0, 1), y.transpose(0, 1), z_all, *weights, lmax=1)


def test_forward_mode_takes_the_reference():
    """PyTorch would drop the tangent of an operator without a rule, and answer with no derivative at all."""
    dims = StackDims(2, 3, 1, 2, 1)
    stack = make_stack(dims, dtype=torch.float64)
    others = {name: tensor for name, tensor in stack.items() if name != "u0"}
    direction = torch.randn(stack["u0"].shape, dtype=torch.float64)
    _, found = torch.func.jvp(lambda u0: gated_stack(u0, **others, lmax=1), (stack["u0"],), (direction,))
    step = 1e-6
    ahead, behind = (gated_stack(stack["u0"] + sign * step * direction, **others, lmax=1) for sign in (1, -1))
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-7)


def test_compiled_stack_is_one_graph():
    """``torch.compile`` would break the graph at the operator, or lose its gradient."""
    dims = StackDims(1, 3, 1, 2, 1)
    stack = make_stack(dims, dtype=torch.float64, requires="u0 gw")
    grad_y = random_like_output(dims, dtype=torch.float64)
    compiled = torch.compile(lambda **tensors: gated_stack(**tensors, lmax=1) * 1, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(**stack), [stack["u0"], stack["gw"]], grad_y)
    wanted = torch.autograd.grad(gated_stack(**stack, lmax=1), [stack["u0"], stack["gw"]], grad_y)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("create_graph", [False, True])
def test_inputs_that_derive_from_one_another(create_graph):
    """A scale made of u0, and weights shared by two stacks, as in the physical model: no path may count twice."""
    dims = StackDims(2, 3, 1, 2, 1)
    stack = make_stack(dims, scale=False, dtype=torch.float64, requires="u0 w0")

    def energy(run):
        u0, weights = stack["u0"], (stack["w0"], stack["w1"], stack["gw"])
        scale = torch.softmax(u0[..., 0].T, dim=1) + 0.1
        once = run(u0, *weights, scale)
        return run(once.transpose(0, 1).contiguous(), *weights, scale).square().sum()

    leaves = (stack["u0"], stack["w0"])
    found = torch.autograd.grad(energy(lambda *t: gated_stack(*t, lmax=1)), leaves, create_graph=create_graph)
    exact = torch.autograd.grad(energy(lambda *t: forward(*t, dims).y), leaves, create_graph=True)
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    if create_graph:
        second = torch.autograd.grad(found[0].square().sum(), stack["w0"])
        torch.testing.assert_close(second, torch.autograd.grad(exact[0].square().sum(), stack["w0"]), rtol=1e-9, atol=0)


def test_the_input_gradient_is_laid_out_as_the_compiler_is_told():
    """With several streams the head's sum is edge-major; compiled code would read it with other strides."""
    dims = StackDims(2, 3, 1, 16, 1)
    stack = make_stack(dims, requires="u0")
    outputs = gated_stack_forward(*(stack[name] for name in NAMES), lmax=1)
    (gradient,) = torch.autograd.grad(outputs.y, stack["u0"], random_like_output(dims))
    assert gradient.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32])
def test_only_real_floating_point_is_taken(dtype):
    """The hand-derived gradients have no conjugates: complex input would get wrong ones, silently."""
    dims = StackDims(1, 2, 1, 2, 1)
    stack = {name: tensor.to(dtype) for name, tensor in make_stack(dims).items()}
    with pytest.raises(ValueError, match="real floating-point"):
        gated_stack(*(stack[name] for name in NAMES), lmax=1)


def test_a_keyword_needs_no_valid_switch(monkeypatch):
    """A benchmark that names its path must not depend on the environment."""
    monkeypatch.setenv("SCAFFOLD_STACK_BWD_FUSED", "maybe")
    dims = StackDims(1, 2, 1, 2, 1)
    stack = make_stack(dims, requires="u0")
    gated_stack(*(stack[name] for name in NAMES), lmax=1, backward="eager").sum().backward()
    with pytest.raises(UserError, match="maybe"):
        gated_stack(*(stack[name] for name in NAMES), lmax=1).sum().backward()
