"""Which path a backward takes, proved by what is launched.

Every refusal is asked for with the switch on, violates one condition only, and stands beside the same
call without the violation, which takes the fused path.
"""

from unittest import mock

import pytest
import torch
from stack_cases import make_stack, random_like_output
from tensors import relative_error

from scaffold.errors import UserError
from scaffold.kernels.gated_stack import driver, gated_stack, gated_stack_forward, gated_stack_input_grad, op, plan
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.reference import forward

DIMS = StackDims(1, 9, 1, 16, 2)
RELAY = ["gate", "pointwise", "gemm"] * 2
PANEL = ["panel_scalar", "panel_vector"] * 2
SWITCH_ON = mock.patch.dict("os.environ", {plan.SWITCH: "1"})
SWITCH_OFF = mock.patch.dict("os.environ", {plan.SWITCH: "0"})


class Observed:
    """What a backward launched and planned."""

    def __init__(self):
        self.launches, self.plans = [], []

    @property
    def reason(self):
        return self.plans[-1].reason

    @property
    def layers(self):
        """The launches without the head's GEMM and the scale's gradient."""
        return [name for name in self.launches[1:] if name != "scale_gradient"]


@pytest.fixture
def observe(monkeypatch):
    """Run a function; return what it launched and planned."""
    observed = Observed()
    real = plan.plan_backward

    def observed_plan(*arguments):
        observed.plans.append(real(*arguments))
        return observed.plans[-1]

    monkeypatch.setattr(plan, "plan_backward", observed_plan)

    def run(function):
        observed.plans.clear()
        with driver.record_launches() as observed.launches:
            function()
        return observed

    return run


def backward(device, *, dims=DIMS, requires="u0", dtype=torch.float32, create_graph=False, cotangents="", **arguments):
    """Return a function that backpropagates through a fresh stack; the forward has run already."""
    stack = make_stack(dims, device=device, dtype=dtype, requires=requires)
    outputs = gated_stack_forward(**stack, lmax=dims.lmax, **arguments)
    chosen = [outputs.y] + [getattr(outputs, name) for name in cotangents.split()]
    gradients = [torch.randn(o.shape, dtype=torch.float64).to(device, dtype) for o in chosen]
    inputs = [stack[name] for name in requires.split()]
    return lambda: torch.autograd.grad(chosen, inputs, gradients, create_graph=create_graph)


def keep_surfaces(device, keep):
    """Return a function that calls the functional backward."""
    stack = make_stack(DIMS, device=device)
    outputs = gated_stack_forward(**stack, lmax=DIMS.lmax)
    weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
    grad_y = random_like_output(DIMS, device=device)
    return lambda: gated_stack_input_grad(
        grad_y, outputs.y, outputs.z_all, *weights, lmax=DIMS.lmax, keep_surfaces=keep
    )


def wide(device):
    return backward(device, dims=StackDims(1, 9, 1, 64, 2))


REFUSALS = {
    "dtype": (lambda device: backward(device, dtype=torch.float64), []),
    "width": (wide, RELAY),
    "weight_grad": (lambda device: backward(device, requires="u0 w1"), RELAY),
    "surfaces": (lambda device: keep_surfaces(device, True), RELAY),
    "cotangent": (lambda device: backward(device, cotangents="z_all"), RELAY),
    "cotangent of u_last": (lambda device: backward(device, cotangents="u_last"), RELAY),
    "grad_mode": (lambda device: backward(device, create_graph=True), []),
    "k_tile": (backward, RELAY),
}
"""Reason and what of it: (the call that is refused, what it launches for the gated layers instead)."""

ACCEPTED = {"surfaces": lambda device: keep_surfaces(device, False)}
"""The same call without the violation, where that is not ``backward(device)``."""


def check_refusal(case, device, observe, monkeypatch):
    call, layers = REFUSALS[case]
    reason = case.split()[0]
    with SWITCH_ON:
        control = observe(ACCEPTED.get(reason, backward)(device))
        assert (control.layers, control.reason) == (PANEL, "ok"), "the control does not take the fused path"
        if reason == "k_tile":
            with monkeypatch.context() as patch:
                patch.setattr(plan.Request, "__init__", _with_relay_k_tile(plan.Request.__init__, 32))
                refused = observe(call(device))
        else:
            refused = observe(call(device))
    assert refused.layers == layers
    assert refused.reason == reason


def _with_relay_k_tile(init, k_tile):
    return lambda self, *a, **k: init(self, *a, relay_k_tile=k_tile, **k)


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_call_falls_back_with_its_reason(case, device, observe, monkeypatch):
    """A call that the fused kernels cannot serve would reach them, or be refused for something else."""
    check_refusal(case, device, observe, monkeypatch)


@pytest.mark.parametrize("case", REFUSALS)
def test_a_missing_guard_is_noticed(case, device, observe, monkeypatch):
    """Control: the test above would pass without the guard that it is about."""
    monkeypatch.setitem(plan.GUARDS, case.split()[0], lambda request: False)
    with pytest.raises(AssertionError):
        check_refusal(case, device, observe, monkeypatch)


def test_switch_is_read_at_each_backward(device, observe):
    """The switch would be read once, at import or in the forward."""
    with SWITCH_OFF:
        call = backward(device)
    with SWITCH_ON:
        assert observe(call).layers == PANEL
    with SWITCH_OFF:
        assert observe(backward(device)).layers == RELAY


def test_switch_is_off_by_default(device, observe, monkeypatch):
    """An opt-in would have become an opt-out."""
    monkeypatch.delenv(plan.SWITCH, raising=False)
    observed = observe(backward(device))
    assert (observed.layers, observed.plans[-1].eligible) == (RELAY, True)


@pytest.mark.parametrize(
    ("keyword", "layers"), [("relay", RELAY), ("fused", ["tiled"] * 4), ("panel", PANEL), ("eager", [])]
)
@pytest.mark.parametrize("switch", [SWITCH_ON, SWITCH_OFF], ids=["on", "off"])
def test_keyword_beats_the_switch(keyword, layers, switch, device, observe):
    """A benchmark's arm would be changed by the environment."""
    with switch:
        assert observe(backward(device, backward=keyword)).layers == layers


@pytest.mark.parametrize("keyword", ["fused", "panel"])
def test_demanded_path_that_cannot_serve_raises_with_the_reason(keyword, device):
    """A demanded path would silently be replaced by another."""
    backward(device, backward=keyword)()
    with pytest.raises(plan.IneligibleError, match="weight_grad") as refusal:
        backward(device, backward=keyword, requires="u0 gw")()
    assert refusal.value.reason == "weight_grad"


def test_unclear_switch_is_refused_by_name(device):
    """A misspelt switch would count as off."""
    with mock.patch.dict("os.environ", {plan.SWITCH: "maybe"}), pytest.raises(UserError, match=plan.SWITCH):
        backward(device)()


def test_refusal_is_told_once(device, caplog, monkeypatch):
    """The user would not learn that the switch has no effect, or would at every step."""
    monkeypatch.setattr(op, "_refusals_told", set())
    with SWITCH_ON, caplog.at_level("INFO"):
        for _ in range(2):
            backward(device, requires="u0 w0")()
    assert [record.message for record in caplog.records if plan.SWITCH in record.message] == [
        f"{plan.SWITCH} is on, but {plan.REASONS['weight_grad']}: taking the relay path"
    ]


@pytest.mark.parametrize("requires", ["u0", "u0 w0 w1 gw scale", "gw", "scale"])
@pytest.mark.parametrize("cotangents", ["", "z_all u_last"])
def test_gradients_match_the_reference(requires, cotangents, device):
    """With the switch on, a gradient would be forgotten, or belong to another input."""
    dims = StackDims(2, 11, 2, 16, 3)
    stack = make_stack(dims, device=device, requires=requires)
    double = {name: tensor.detach().double().requires_grad_() for name, tensor in stack.items()}
    outputs = gated_stack_forward(**stack, lmax=dims.lmax)
    exact = forward(*[double[name] for name in ("u0", "w0", "w1", "gw", "scale")], dims)
    names = ["y", *cotangents.split()]
    seeds = [torch.randn(getattr(outputs, name).shape, dtype=torch.float64).to(device) for name in names]
    inputs = requires.split()
    with SWITCH_ON:
        found = torch.autograd.grad(
            [getattr(outputs, name) for name in names], [stack[name] for name in inputs], [s.float() for s in seeds]
        )
    wanted = torch.autograd.grad(
        [getattr(exact, name) for name in names], [double[name] for name in inputs], seeds, allow_unused=True
    )
    for name, gradient, exact_gradient in zip(inputs, found, wanted, strict=True):
        assert relative_error(gradient, exact_gradient) < 2e-6, name


def test_second_order_with_the_switch_on(device):
    """``create_graph=True`` would give zeros, or a gradient without a graph."""
    stack = make_stack(DIMS, device=device, requires="u0 w0 gw scale")
    double = {name: tensor.detach().double().requires_grad_() for name, tensor in stack.items()}
    grad_y = random_like_output(DIMS, device=device)
    names = ["u0", "w0", "gw", "scale"]

    def second_order(y, inputs, seed):
        (first,) = torch.autograd.grad(y, inputs["u0"], seed, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), [inputs[name] for name in names])

    with SWITCH_ON:
        first, second = second_order(gated_stack(**stack, lmax=DIMS.lmax), stack, grad_y)
    reference = forward(*[double[name] for name in ("u0", "w0", "w1", "gw", "scale")], DIMS).y
    exact_first, exact_second = second_order(reference, double, grad_y.double())
    assert relative_error(first, exact_first) < 2e-6
    for name, gradient, exact in zip(names, second, exact_second, strict=True):
        assert exact.abs().max() > 0
        assert relative_error(gradient, exact) < 5e-6, name


def test_surfaces_are_what_the_weight_gradients_need(device):
    """A kept surface would be overwritten by the next layer, which uses the same buffer."""
    stack = make_stack(DIMS, device=device)
    y, z_all, _ = gated_stack_forward(**stack, lmax=DIMS.lmax)
    grad_y = random_like_output(DIMS, device=device)
    weights = [stack[name] for name in ("scale", "w0", "w1", "gw")]
    kept = {
        path: gated_stack_input_grad(grad_y, y, z_all, *weights, lmax=1, backward=path, keep_surfaces=True)
        for path in ("relay", "eager")
    }
    for ours, plain in zip(kept["relay"], kept["eager"], strict=True):
        assert relative_error(ours, plain.double()) < 1e-6
    assert not torch.equal(kept["relay"].grad_z_all[0], kept["relay"].grad_z_all[1])


def test_operator_registration_is_sound(device):
    """The fake kernels would disagree with the real ones in shape, dtype or strides, and break compilation."""
    dims = StackDims(2, 9, 1, 16, 2)
    stack = make_stack(dims, device=device, requires="u0 scale")
    arguments = [stack[name] for name in ("u0", "w0", "w1", "gw", "scale")]
    torch.library.opcheck(torch.ops.scaffold.gated_stack.default, (*arguments, dims.lmax, "auto", "ieee"))
    outputs = gated_stack_forward(**stack, lmax=dims.lmax)
    u0, *weights = (tensor.detach() for tensor in arguments)
    *weights, scale = weights
    y, z_all, u_last = (tensor.detach() for tensor in outputs)
    grad_y = random_like_output(dims, device=device)
    torch.library.opcheck(
        torch.ops.scaffold.gated_stack_backward.default,
        (grad_y, None, None, y, z_all, u0, u_last, *weights, scale, dims.lmax, "relay", "ieee", True, True),
    )


def test_noncontiguous_inputs_are_accepted(device):
    """A strided view would be read as if it were packed."""
    stack = make_stack(DIMS, device=device)
    strided = {name: torch.stack([tensor, -tensor], dim=-1)[..., 0] for name, tensor in stack.items()}
    grad_y = random_like_output(DIMS, device=device)
    assert not strided["u0"].is_contiguous()
    assert not strided["scale"].is_contiguous()
    found = []
    for tensors, gradient in ((stack, grad_y), (strided, torch.stack([grad_y, -grad_y], dim=-1)[..., 0])):
        y, z_all, _ = gated_stack_forward(**tensors, lmax=DIMS.lmax)
        weights = [tensors[name] for name in ("scale", "w0", "w1", "gw")]
        found.append((y, *gated_stack_input_grad(gradient, y, z_all, *weights, lmax=DIMS.lmax)[:2]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
