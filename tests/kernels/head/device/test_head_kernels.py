"""What the kernels of the fused head compute, against float64 and against the two operations that they replace."""

import pytest
import torch
from head_case import NAMES, exact_run, make_case, run
from mutants import mutant
from tensors import LAST, relative_error, same_bits

from scaffold.kernels import ladder
from scaffold.kernels.group_norm import op as group_norm
from scaffold.kernels.head import kernels, launch, op, plan

SHAPES = [
    ((1, 64, 3, 5, 7), 8, 6),  # as in the network, an odd number of voxels
    ((2, 15, 3, 3, 5), 3, 2),  # two samples, groups of 5 channels, three of them
    ((1, 128, 1, 3, 7), 8, 32),  # the most channels and classes
    ((3, 4, 2, 2, 3), 2, 17),  # fewer channels than a product takes, fewer voxels than a tile
    ((1, 16, 2, 4, 8), 16, 5),  # instance norm, whole tiles
]


def narrow():
    """Triton's interpreter multiplies bfloat16 wrongly."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float16


@pytest.mark.parametrize(("shape", "groups", "classes"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, narrow()], ids=str)
def test_values_and_gradients_against_float64(shape, groups, classes, dtype, device, launches):
    """A tail, a padded channel, group or class, a second sample or an empty tile would be summed wrongly."""
    inputs, gradient = make_case(device, shape, classes, dtype)
    assert op.declines(*inputs, groups) is None
    found, exact = run(inputs, gradient, groups), exact_run(inputs, gradient, groups)
    assert launches == ["logits", "gradient_sums", "input_gradient"]
    unit = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    for name, ours, right, tensor in zip(NAMES, found, exact, [gradient, *inputs], strict=True):
        assert relative_error(ours, right) < unit, name
        assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape), name
    assert found[0].is_contiguous(memory_format=LAST)
    assert found[1].is_contiguous(memory_format=LAST)


def test_the_case_takes_several_turns(device):
    """The loop of a program, and a tile beyond the last voxel, would not be reached by the test above."""
    launched = dict(launch.plan("gradient_sums", plan.Problem(64, 8, 6, 105, 1, 4), None).constants)
    assert launched["TURNS"] > 1
    assert launched["TURNS"] * launched["PROGRAMS"] * launched["BLOCK"] > 105


def test_logits_are_those_of_the_two_operations(device):
    """The product would take normalised values that are not rounded as the separate operation stores them."""
    (x, norm_weight, norm_bias, weight, bias), _ = make_case(device, dtype=narrow())
    y = group_norm.group_norm_relu(x, norm_weight, norm_bias, 8)
    weight.zero_()[:, 3] = 1
    # The difference to what is stored of one voxel is what rounding would leave.
    voxel = (0, slice(None), 2, 3, 4)
    bias[:] = -y[voxel][3]
    assert y[voxel][3] != 0, "control"
    logits = op.group_norm_relu_pointwise(x, norm_weight, norm_bias, weight, bias, 8)
    assert not logits[voxel].any()
    assert logits.any()


def test_gradient_of_the_normalised_tensor_stays_wide(device):
    """It would be rounded where nothing needs to be stored."""
    inputs, gradient = make_case(device, dtype=narrow())
    exact = exact_run(inputs, gradient, 8)[1]
    ours, theirs = (
        (run(inputs, gradient, 8, function)[1].double() - exact).norm() / exact.norm()
        for function in (op.group_norm_relu_pointwise, op.separate)
    )
    assert ours < 0.95 * theirs


def test_large_mean(device):
    """Sums would be taken of x instead of its distance from the mean, and cancel."""
    inputs, gradient = make_case(device, mean=1e3)
    for name, ours, right in zip(NAMES, run(inputs, gradient, 8), exact_run(inputs, gradient, 8), strict=True):
        assert relative_error(ours, right) < 5e-4, name


def test_gate_looks_at_the_pre_activation(device):
    """An output that underflows still passes its gradient; a pre-activation of zero does not."""
    (x, norm_weight, norm_bias, weight, bias), gradient = make_case(device, (1, 16, 2, 3, 4), dtype=torch.float16)
    norm_weight, norm_bias = norm_weight * 1e-9, norm_bias * 0
    weight[:], gradient = 1, torch.ones_like(gradient)
    _, _, _, of_bias, of_weight, _ = run((x, norm_weight, norm_bias, weight, bias), gradient, 4)
    assert not of_weight.any()
    assert (of_bias > 0).all()
    assert (of_bias < 24 * 6).all()
    _, dx, _, of_bias, _, _ = run((x, norm_weight * 0, norm_bias, weight, bias), gradient, 4)
    assert not of_bias.any()
    assert not dx.any()


def test_nan_is_never_hidden(device):
    """Hazard 16: a ReLU or a padded lane that swallowed NaN would defeat the stop at a non-finite loss."""
    inputs, gradient = make_case(device, (2, 24, 2, 3, 4), 5)
    x = inputs[0].clone(memory_format=torch.preserve_format)
    x[0, 3, 1, 1, 1] = torch.nan
    logits, dx, *_ = run((x, *inputs[1:]), gradient, 3)
    assert logits[0].isnan().all()
    assert logits[1].isfinite().all()
    assert dx[0, :8].isnan().all()
    assert dx[1].isfinite().all()
    gradient[1, 2, 0, 0, 0] = torch.nan
    _, dx, of_norm_weight, of_norm_bias, of_weight, of_bias = run(inputs, gradient, 3)
    assert dx[0].isfinite().all()
    assert dx[1].isnan().any()
    assert of_norm_weight.isnan().any()
    assert of_norm_bias.isnan().any()
    assert (
        of_weight.flatten(1).isnan().all(1).tolist() == of_bias.isnan().tolist() == [False, False, True, False, False]
    )


LAYOUTS = {
    "contiguous": lambda g: g.contiguous(),
    "slice of channels": lambda g: torch.cat((g, g * 0), 1)[:, : g.shape[1]],
    "expanded": lambda g: g[:1, :1, :1, :1, :1].expand_as(g),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_arrive_in_any_layout(layout, device):
    """Autograd hands over views; one would be read as if it were dense."""
    inputs, gradient = make_case(device, (2, 16, 2, 3, 4), 3)
    view = LAYOUTS[layout](gradient)
    dense = view.contiguous(memory_format=LAST)
    for a, b in zip(run(inputs, view, 4), run(inputs, dense, 4), strict=True):
        assert same_bits(a, b)


def test_autocast_rounds_the_convolutions_parameters_only(device):
    """Logits would be float32, or gradients that clipping and Adam read wide be rounded."""
    inputs, gradient = make_case(device, dtype=narrow(), parameters=torch.float32)
    with torch.autocast(device, narrow()):
        assert op.declines(*inputs, 8) is None
        found = run(inputs, gradient, 8)
        stock = run(inputs, gradient, 8, op.separate)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in stock]
    assert found[0].dtype == narrow()
    for name, ours, right in zip(NAMES, found, exact_run(inputs, gradient, 8), strict=True):
        assert relative_error(ours, right) < torch.finfo(narrow()).eps, name
    assert op.declines(*inputs, 8) is not None, "without it the dtypes are a mistake, which PyTorch shall tell"


def test_autocast_rounds_the_bias_before_it_is_added(device):
    """Logits would not be those of the two operations, which add a rounded bias."""
    (x, norm_weight, norm_bias, weight, bias), _ = make_case(device, dtype=narrow(), parameters=torch.float32)
    eps = torch.finfo(narrow()).eps
    norm_weight.zero_()
    norm_bias.fill_(1)
    weight.zero_()[:, 3] = eps / 2
    bias.fill_(1 + eps * 9 / 16)
    assert ((bias + eps / 2).to(narrow()) == 1 + eps).all(), "control: what adding first would give"
    with torch.autocast(device, narrow()):
        logits = op.group_norm_relu_pointwise(x, norm_weight, norm_bias, weight, bias, 8)
    assert (logits == 1 + 2 * eps).all()


@pytest.mark.usefixtures("poisoned_memory")
def test_nothing_unwritten_is_read(device):
    """A program would leave its row of partial sums, or a voxel of a result, as it found it."""
    inputs, gradient = make_case(device, (2, 24, 3, 3, 5), 5)
    for ours, right in zip(run(inputs, gradient, 3), exact_run(inputs, gradient, 3), strict=True):
        assert relative_error(ours, right) < 2e-6


def test_repeats_give_the_same_bits(device):
    """A race, or a sum in an order that varies."""
    shape = (2, 64, 30, 31, 32) if device == "cuda" else (1, 16, 1, 5, 7)
    inputs, gradient = make_case(device, shape, dtype=narrow())
    first = run(inputs, gradient, 8)
    # The interpreter has no races.
    for _ in range(20 if device == "cuda" else 2):
        assert all(same_bits(a, b) for a, b in zip(run(inputs, gradient, 8), first, strict=True))


def test_served_and_counted(device):
    """``kernels.calls`` of a result would not tell the fused form from the two operations."""
    inputs, gradient = make_case(device, (1, 16, 2, 2, 3))
    run(inputs, gradient, 4)
    assert ladder.served() == {op.launch.OP: {"triton": 1}}


def test_gathered_statistics_are_served_by_the_two_operations(device, launches):
    """A hook would never be called, and the blocks of a sample be normalised each for itself."""
    inputs, gradient = make_case(device, (1, 16, 3, 2, 3))
    gathered = []

    def call(*tensors):
        return op.group_norm_relu_pointwise(
            *tensors, partials=lambda rows: gathered.append(rows.shape[-1]) or rows, site=torch.nn.Identity()
        )

    found = run(inputs, gradient, 4, call)
    assert not launches
    assert gathered == [3, 2]
    assert ladder.served()[op.launch.OP] == {"separate": 1}
    for ours, right in zip(found, exact_run(inputs, gradient, 4), strict=True):
        assert relative_error(ours, right) < 2e-6


def test_operators_keep_what_they_promise_the_compiler(device):
    """The fake kernels would promise other shapes, strides or dtypes than the real ones return."""
    (x, norm_weight, norm_bias, weight, bias), gradient = make_case(device, (1, 16, 2, 3, 4), 3)
    leaves = [tensor.requires_grad_() for tensor in (x, norm_weight, norm_bias, weight.flatten(1), bias)]
    checks = ["test_schema", "test_faketensor", "test_autograd_registration"]
    torch.library.opcheck(op._forward_op, (*leaves, 4, 1e-5), test_utils=checks)
    x, norm_weight, norm_bias, weight, bias = (leaf.detach() for leaf in leaves)
    _, statistics = op._forward_op(x, norm_weight, norm_bias, weight, bias, 4, 1e-5)
    arguments = (x, norm_weight, norm_bias, weight, statistics, gradient, 4)
    torch.library.opcheck(op._backward_op, arguments, test_utils=checks[:2])


def test_derivatives_that_do_not_exist_are_refused(device):
    """A second derivative, or one of the saved statistics, would silently be zero."""
    (x, norm_weight, norm_bias, weight, bias), _ = make_case(device, (1, 16, 2, 3, 4), 3)
    logits, statistics = op._forward_op(x.requires_grad_(), norm_weight, norm_bias, weight.flatten(1), bias, 4, 1e-5)
    assert not statistics.requires_grad
    (dx,) = torch.autograd.grad(logits.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        dx.sum().backward()


MUTATIONS = {
    "no ReLU": ("y = tl.where(y <= 0, 0.0, y).to(x.dtype.element_ty)", "y = y.to(x.dtype.element_ty)"),
    "no bias": ("+ b[None, :]", ""),
    "second sample": ("logits += sample.to(tl.int64) * (VOXELS * CLASSES)", "logits += 0"),
    "gradient's second sample": ("dx += sample.to(tl.int64) * (VOXELS * C)", "dx += 0"),
    "last turn": ("(TURNS - 1 - turn) * PROGRAMS", "(TURNS - 2 - turn) * PROGRAMS * (turn < TURNS - 1)"),
    "gate": ("gate = tl.where(stopped, 0.0, 1.0)", "gate = tl.where(stopped, 1.0, 1.0)"),
    "gated distances": ("tl.where(stopped, 0.0, d)", "d"),
    "weight's rows": ("weight + output[:, None] * C", "weight + output[:, None] % 4 * C"),
    "slope": ("(slope * d + constant)", "constant"),
    "groups' weights": ("tl.reshape(w * of_weight, shape)", "tl.reshape(of_weight, shape)"),
    "one row of the parameters' sums": ("width, ROWS)", "width, 1)"),
    "other eps": ("samples, eps, group", "samples, 1e-3, group"),
}  # fmt: skip


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_kernel_is_noticed(name, tmp_path, monkeypatch, device):
    """Control: the comparison with float64 would pass although a kernel computes something else."""
    old, new = MUTATIONS[name]
    inputs, gradient = make_case(device, (2, 15, 3, 5, 5), 5)
    exact = exact_run(inputs, gradient, 3)
    wrong = mutant(kernels, old, new, monkeypatch, tmp_path)
    for kernel in ("logits", "gradient_sums", "input_gradient"):
        monkeypatch.setattr(kernels, f"{kernel}_kernel", getattr(wrong, f"{kernel}_kernel"))
    found = run(inputs, gradient, 3)
    assert ladder.served() == {op.launch.OP: {"triton": 1}}
    assert not all(relative_error(ours, right) < 1e-5 for ours, right in zip(found, exact, strict=True))
