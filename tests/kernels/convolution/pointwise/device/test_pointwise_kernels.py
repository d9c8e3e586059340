"""The kernels of the pointwise convolution against float64."""

import pytest
import torch
from pointwise_case import exact_run, make_case, run
from tensors import LAST, relative_error

from scaffold.kernels import pointwise_convolution
from scaffold.kernels.convolution import pointwise, pointwise_plan

CHANNELS = [(64, 6), (16, 2), (24, 5), (128, 17), (1, 1), (256, 32)]
NAMES = ("output", "input", "weight", "bias")


def narrow_dtypes():
    return [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


@pytest.mark.parametrize("dtype", [torch.float32, *narrow_dtypes()])
@pytest.mark.parametrize(("inputs", "outputs"), CHANNELS)
def test_exact_operands_give_exact_results(inputs, outputs, dtype, device):
    """A channel, a row or a tile would be left out, counted twice or taken from elsewhere."""
    case = make_case(device, inputs, outputs, dtype, exact=True)
    ours, right = run(pointwise.triton, *case), exact_run(*case)
    for name, mine, exact in zip(NAMES, ours, right, strict=True):
        assert torch.equal(mine, exact.to(mine.dtype)), name
        assert (exact.abs() < 2048).all(), "control: float16 holds it exactly"
    x, weight, bias, gradient = case
    if inputs > 1:
        shifted = run(pointwise.triton, x.roll(1, 1), weight, bias, gradient)
        assert not torch.equal(shifted[0], ours[0]), "control: shifted channels show"
        assert not torch.equal(shifted[2], ours[2])


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 127), (4, 4, 8), (1, 3, 43), (9, 9, 9)])
def test_any_number_of_voxels(shape, device):
    """One voxel, one less or more than a tile holds, one tile exactly, several turns of a program."""
    case = make_case(device, dtype=torch.float16, shape=shape, samples=1, exact=True)
    for mine, exact in zip(run(pointwise.triton, *case), exact_run(*case), strict=True):
        assert torch.equal(mine, exact.to(mine.dtype))


def test_several_turns_are_taken(device):
    """The largest shape above would not reach the loop of a program."""
    made = pointwise_plan.plan(64, 6, 9**3, 2, 1)
    assert made.turns > 1
    assert made.turns * made.programs * made.block > 9**3
    if device == "cuda":
        case = make_case(device, dtype=torch.float16, shape=(90, 80, 70), exact=True)
        assert torch.equal(run(pointwise.triton, *case)[0], exact_run(*case)[0].half())


@pytest.mark.parametrize("dtype", [torch.float32, *narrow_dtypes()])
def test_random_operands_are_rounded_once(dtype, device):
    """Sums would be kept in the narrow type, or in TF32."""
    case = make_case(device, dtype=dtype, shape=(9, 10, 11))
    # The interpreter truncates where a GPU rounds to nearest.
    unit = torch.finfo(dtype).eps / (2 if device == "cuda" else 1)
    for name, mine, exact in zip(NAMES, run(pointwise.triton, *case), exact_run(*case), strict=True):
        error = relative_error(mine, exact)
        assert error <= max(unit, 1e-6), name
        if dtype == torch.float32:
            assert error <= 5e-7, name


def test_float32_is_not_tf32(device):
    """1 + 2**-12 is 1 in TF32."""
    x, weight, bias, _ = make_case(device, shape=(2, 2, 2))
    x.fill_(1 + 2**-12)
    weight.fill_(1)
    assert torch.equal(pointwise.triton(x, weight, 0 * bias), torch.full_like(x[:, :6], 64 + 64 * 2**-12))


def test_autocast_rounds_the_operands_and_keeps_the_parameters_gradients_wide(device):
    """The output would be float32; or the gradients be rounded to a type that clipping and Adam do not need."""
    dtype = narrow_dtypes()[-1]
    x, weight, bias, gradient = make_case(device)
    with torch.autocast(device, dtype):
        ours = run(pointwise_convolution, x, weight, bias, gradient)
        stock = run(pointwise.eager, x, weight, bias, gradient)
        assert pointwise.declines(x, weight, bias) is None
    assert [tensor.dtype for tensor in ours] == [tensor.dtype for tensor in stock]
    assert ours[0].dtype == dtype
    rounded = [tensor.to(dtype) for tensor in (x, weight, bias, gradient)]
    right = exact_run(*rounded)
    for name, mine, theirs, exact in zip(NAMES, ours, stock, right, strict=True):
        assert relative_error(mine, exact) < 4e-3, name
        if name in ("weight", "bias"):
            assert relative_error(mine, exact) < 1e-6, name
            assert relative_error(theirs, exact) > 1e-5, "control: stock rounds them"


def test_autocast_rounds_each_operand(device):
    """A parameter kept wide would make another network of it than PyTorch's convolution does."""
    dtype = narrow_dtypes()[-1]
    fine = 1 + 2**-12
    x, weight, bias, _ = (torch.zeros_like(tensor) for tensor in make_case(device, 16, 3, shape=(2, 2, 2)))
    # Each output is what rounding leaves of 2**-12: of a weight, of the bias, of the input.
    x[:, 0], x[:, 1], x[:, 2] = 1, -1, fine
    weight[0, 0], weight[0, 1] = fine, 1
    weight[1, 1], bias[1] = 1, fine
    weight[2, 2], weight[2, 1] = 1, 1
    assert torch.equal(pointwise_convolution(x, weight, bias), torch.full_like(x[:, :3], 2**-12)), "control: it shows"
    with torch.autocast(device, dtype):
        assert not pointwise_convolution(x, weight, bias).any()


@pytest.mark.parametrize("layout", ["NCDHW", "expanded", "sliced"])
def test_gradient_of_any_layout(layout, device):
    """A gradient that does not lie in channels-last order would be read as if it did."""
    x, weight, bias, gradient = make_case(device, dtype=torch.float16, exact=True)
    gradient = {
        "NCDHW": gradient.contiguous(),
        "expanded": torch.ones((), device=device, dtype=torch.float16).expand_as(gradient),
        "sliced": torch.cat((gradient, gradient), 1)[:, :6],
    }[layout]
    ours, right = run(pointwise.triton, x, weight, bias, gradient), exact_run(x, weight, bias, gradient)
    assert all(torch.equal(mine, exact.half()) for mine, exact in zip(ours, right, strict=True))
    assert ours[1].is_contiguous(memory_format=LAST)


def test_output_and_gradients_keep_their_layouts(device):
    """Hazard 65: one contiguous tensor in between costs two transposes at every step."""
    x, weight, bias, gradient = make_case(device)
    out, dx, dweight, dbias = run(pointwise.triton, x, weight.contiguous(memory_format=LAST), bias, gradient)
    assert out.is_contiguous(memory_format=LAST)
    assert dx.is_contiguous(memory_format=LAST)
    assert (dweight.shape, dbias.shape) == (weight.shape, bias.shape)


def test_non_finite_values_pass(device):
    """Hazard 16: a NaN must reach the loss, and one outside the voxel it stands in must not."""
    x, weight, bias, gradient = make_case(device)
    x[0, 3, 1, 1, 1] = torch.nan
    out = pointwise.triton(x, weight, bias)
    assert out[0, :, 1, 1, 1].isnan().all()
    assert out.isnan().sum() == 6
    gradient[1, 2, 0, 0, 0] = torch.inf
    _, _, dweight, dbias = run(pointwise.triton, x.nan_to_num(), weight, bias, gradient)
    assert not dweight[2].isfinite().any()
    assert dbias.isfinite().tolist() == [True, True, False, True, True, True]


@pytest.mark.usefixtures("poisoned_memory")
def test_nothing_unwritten_is_read(device):
    """A program would leave its row of partial sums, or a row of the output, as it found it."""
    case = make_case(device, 24, 5)
    for mine, exact in zip(run(pointwise.triton, *case), exact_run(*case), strict=True):
        assert relative_error(mine, exact) < 2e-6


def test_served_by_the_kernels(device, monkeypatch):
    """The tests below of calls that are declined would pass if all were."""
    calls = []
    real = pointwise._convolution
    monkeypatch.setattr(pointwise, "_convolution", lambda *args: calls.append(1) or real(*args))
    x, weight, bias, _ = make_case(device)
    with torch.inference_mode():
        pointwise_convolution(x, weight, bias)
    assert calls == [1]


DECLINED = {
    "float64": lambda x, w, b: (x.double(), w.double(), b.double()),
    "NCDHW": lambda x, w, b: (x.contiguous(), w, b),
    "sliced": lambda x, w, b: (x[..., :-1], w, b),
    "33 outputs": lambda x, w, b: (x, w.repeat(6, 1, 1, 1, 1)[:33], b.repeat(6)[:33]),
    "512 inputs": lambda x, w, b: (x.repeat(1, 8, 1, 1, 1).contiguous(memory_format=LAST), w.repeat(1, 8, 1, 1, 1), b),
}


@pytest.mark.parametrize("change", DECLINED)
def test_declined_calls_are_pytorchs(change, device):
    """A call that the kernels cannot serve would reach them."""
    case = DECLINED[change](*make_case(device)[:3])
    assert pointwise.declines(*case) is not None
    assert torch.equal(pointwise_convolution(*case), torch.nn.functional.conv3d(*case))


@pytest.mark.parametrize("change", ["dtypes", "kernel", "bias"])
def test_mistakes_are_pytorchs_errors(change, device):
    """A user's mistake would become an access beyond a tensor's end."""
    x, weight, bias, _ = make_case(device)
    weight, bias = {
        "dtypes": (weight.half(), bias),
        "kernel": (weight[:, :60], bias),
        "bias": (weight, bias[:5]),
    }[change]
    with pytest.raises(RuntimeError):
        pointwise_convolution(x, weight, bias)


def test_operators_are_registered_soundly(device):
    """The fake kernels would disagree with the real ones in shape, dtype or strides, and break compilation."""
    x, weight, bias, gradient = make_case(device, 16, 3, shape=(2, 3, 4))
    weight = weight.flatten(1).requires_grad_()
    torch.library.opcheck(torch.ops.scaffold.pointwise_convolution.default, (x.requires_grad_(), weight, bias))
    arguments = (x.detach(), weight.detach(), gradient)
    torch.library.opcheck(torch.ops.scaffold.pointwise_convolution_backward.default, arguments)


def test_second_derivative_raises(device):
    """It would silently be zero."""
    x, weight, bias, _ = make_case(device, 16, 3, shape=(2, 3, 4))
    weight.requires_grad_()
    out = pointwise.triton(x, weight, bias)
    (gradient,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(gradient.square().sum(), weight)


def test_twenty_repeats_give_the_same_bits(device):
    """A race, or a sum in an order that varies."""
    case = make_case(device, dtype=narrow_dtypes()[-1], shape=(64, 96, 96) if device == "cuda" else (3, 5, 7))
    first = run(pointwise.triton, *case)
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(run(pointwise.triton, *case), first, strict=True))
