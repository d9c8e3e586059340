"""The step up as an operator: which form serves a call, autocast, compilation, derivatives."""

import pytest
import torch
from tensors import LAST
from torch import nn
from upsample_case import NAMES, Case, same_values

from scaffold.kernels.convolution import upsample, upsample_launch
from scaffold.model.blocks import UpBlock


@pytest.fixture
def case(device):
    return Case(16, (2, 2, 2), device=device)


@pytest.fixture
def launches(monkeypatch):
    """Names of the kernels that are launched, in order."""
    names = []
    real = upsample_launch.run
    monkeypatch.setattr(upsample_launch, "run", lambda launch, *a: (names.append(launch.kernel), real(launch, *a)))
    return names


def inputs(case, **changed):
    return {name: tensor for name, tensor in (case.tensors | changed).items() if name != "grad"}


def test_one_launch_forward_and_a_fixed_order_backward(case, launches):
    """The concatenation would be copied once more, or the sum's second stage run before its first."""
    case.run(upsample.upsample_concatenate)
    assert launches[:2] == ["forward", "input_gradient"]
    assert launches[-1] == "sum_shares"
    assert launches.count("weight_gradient") == 1


class Subclass(torch.Tensor):
    """A tensor subclass."""


REFUSALS = {
    "no bias": lambda case: {"bias": None},
    "subclass": lambda case: {"x": case.tensors["x"].as_subclass(Subclass)},
    "channels-last": lambda case: {"x": case.tensors["x"].contiguous()},
    "dtypes": lambda case: {name: tensor.double() for name, tensor in inputs(case).items()},
    "dtypes that differ": lambda case: {"skip": case.tensors["skip"].half()},
    "fit together": lambda case: {"skip": case.tensors["skip"][:, :8]},
    "other extents": lambda case: {"x": case.tensors["x"][:, :, :1]},
    "multiple of 16": lambda case: inputs(Case(8, (2, 2, 2), device=case.device)),
    "empty": lambda case: {"x": case.tensors["x"][:0], "skip": case.tensors["skip"][:0]},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refused_calls_say_why(reason, case):
    """A call that the kernels cannot serve would reach them. Each stands beside the same call without its fault."""
    assert upsample.declines(**inputs(case)) is None
    assert reason in upsample.declines(**(inputs(case) | REFUSALS[reason](case)))


def test_refused_calls_are_served_by_eager(case, launches):
    """A refusal would end in an error instead of PyTorch's operators."""
    contiguous = {name: tensor.contiguous() for name, tensor in inputs(case).items()}
    found = upsample.upsample_concatenate(**contiguous)
    assert launches == []
    assert torch.equal(found, upsample.eager(**contiguous))
    upsample.upsample_concatenate(**inputs(case))
    assert launches == ["forward"], "control: the kernels were off"


def test_transforms_get_the_eager_form(case, launches):
    """Idea 51: a transform would trace into the operator, which has no rule for it."""
    tensors = inputs(case)

    def loss(x):
        return (upsample.upsample_concatenate(x, *[tensors[name] for name in NAMES[2:]]) * case.tensors["grad"]).sum()

    found = torch.func.grad(loss)(tensors["x"])
    assert launches == []
    assert torch.equal(found, case.run(upsample.eager)["x"])


def test_operator_is_registered_soundly(case):
    """Ideas 35 and 39: what is promised to the compiler (shape, dtype, stride) would differ from what is made."""
    leaves = [
        tensor.detach().requires_grad_()
        for tensor in inputs(Case(16, (1, 2, 1), (0, 1, 0), device=case.device)).values()
    ]
    torch.library.opcheck(upsample._forward_op, tuple(leaves[:4]))
    grad = case.tensors["grad"]
    for needs in ((True, True), (False, True), (True, False)):
        arguments = (grad, case.tensors["x"], case.tensors["weight"], *needs)
        torch.library.opcheck(upsample._backward_op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_compiled_call_gives_the_same_bits(case, launches):
    """Idea 36: the graph would break at the operator, or the skip's gradient, a view, be lost in it."""
    wanted = case.run(upsample.upsample_concatenate)
    count = len(launches)

    def step(**tensors):
        return upsample.upsample_concatenate(**tensors) * 1

    found = case.run(torch.compile(step, fullgraph=True, backend="aot_eager"))
    assert len(launches) == 2 * count
    assert same_values(found, wanted)


def test_second_derivative_raises(case):
    """Idea 38: it would silently be zero."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs(case).values()]
    out = upsample.upsample_concatenate(*leaves)
    (dx,) = torch.autograd.grad((out**2).sum(), leaves[0], create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="no autograd formula"):
        dx.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_the_stock_convolution_does(case, dtype, launches):
    """Idea 71: float32 parameters would be computed in float32, or their gradients come back narrow."""
    with torch.autocast(case.device, dtype):
        found = case.run(upsample.upsample_concatenate)
        stock = case.run(upsample.eager)
    assert "forward" in launches
    assert {name: found[name].dtype for name in NAMES} == {name: stock[name].dtype for name in NAMES}
    assert found["out"].dtype == dtype
    assert same_values(found, stock), "integers are exact"


def test_network_block_runs_on_the_kernels_and_keeps_its_state(device, launches):
    """The decoder would go on calling its module, or its parameters have other names or layouts."""
    torch.manual_seed(0)
    block = UpBlock(32, groups=8).to(device)
    assert sorted(name for name, _ in block.named_parameters() if name.startswith("up.")) == ["up.bias", "up.weight"]
    assert block.up.weight.shape == nn.ConvTranspose3d(32, 16, kernel_size=2, stride=2).weight.shape
    x = torch.randn(1, 32, 2, 2, 2, device=device).contiguous(memory_format=LAST)
    skip = torch.randn(1, 16, 4, 4, 5, device=device).contiguous(memory_format=LAST)
    block(x, skip).sum().backward()
    assert {"forward", "weight_gradient"} <= set(launches)
    assert block.up.weight.grad.is_contiguous(), "the gradient has the parameter's layout, as optimizers fuse them"
