"""The kernels of Adam against PyTorch's own, and what serves a step that they cannot take."""

import adam_cases
import pytest
import torch
from adam_cases import NORM, RATE, greatest_difference, our_steps, parameters, set_gradients, stock_steps
from torch.autograd import forward_ad

from scaffold.kernels import ladder
from scaffold.kernels.adam import op, plan
from scaffold.training.adam import Adam

STEPS = 4 if not torch.cuda.is_available() else 10


@pytest.mark.parametrize(("scale", "clips"), [(1.0, True), (1e-3, False)])
def test_parameters_and_moments_are_those_of_pytorch(device, scale, clips):
    """84: another formula, order of memory, tensor or chunk would train another network."""
    ours, optimizer, served = our_steps(device, STEPS, scale)
    stock, theirs = stock_steps(device, STEPS, scale)
    assert served == {"triton": STEPS}
    assert greatest_difference(ours, stock) < 1e-6
    for mine, its in zip(ours, stock, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            expected = theirs.state[its][name]
            error = (optimizer.state[mine][name].double() - expected).abs().max()
            assert error <= 1e-6 * expected.abs().max()
        assert optimizer.state[mine]["step"].item() == STEPS
    # Control: what a step more or less would change.
    assert greatest_difference(ours, stock_steps(device, STEPS - 1, scale)[0]) > 1e-3
    norm = torch.cat([parameter.grad.flatten() for parameter in parameters_with_gradients(device, scale)]).norm()
    assert (norm > NORM) == clips


def workspace_of(optimizer):
    return optimizer._workspaces.of(optimizer._tensors())


def parameters_with_gradients(device, scale):
    made = parameters(device)
    set_gradients(made, 0, scale)
    return made


def test_coefficient_is_that_of_the_global_norm(device):
    """Without the square root, per tensor, or without the chunks' tails, the clip would be another."""
    made, optimizer, _ = our_steps(device, 1)
    set_gradients(made, 0)
    norm = torch.cat([parameter.grad.double().flatten() for parameter in made]).norm()
    coefficient = workspace_of(optimizer)._coefficient
    assert coefficient.item() == pytest.approx(1 / (norm.item() + 1e-6), rel=2e-6)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_norms_that_are_not_finite_act_as_in_pytorch(device, bad):
    """84: infinity zeroes what is finite and spoils one element; NaN spoils all. Hidden, a run would go on broken."""
    results = []
    for optimizer_of in (lambda made: Adam(made, lr=RATE), lambda made: torch.optim.Adam(made, lr=RATE)):
        made = parameters(device)
        optimizer = optimizer_of(made)
        set_gradients(made, 0)
        made[0].grad[3, 2, 1, 1, 1] = bad
        if isinstance(optimizer, Adam):
            optimizer.step(max_norm=NORM)
        else:
            torch.nn.utils.clip_grad_norm_(made, NORM)
            optimizer.step()
        results.append(torch.cat([parameter.detach().flatten() for parameter in made]))
    ours, stock = results
    assert ladder.served() == {"clipped_adam": {"triton": 1}}
    assert torch.equal(ours.isnan(), stock.isnan())
    assert ours.isnan().sum() == (len(ours) if bad != bad else 1)
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-6, equal_nan=True)


def test_zero_gradients_leave_the_parameters(device):
    """0 / (0 + eps) is 0, and a norm of 0 must not divide."""
    made, before = parameters(device), parameters(device)
    for parameter in made:
        parameter.grad = torch.zeros_like(parameter)
    Adam(made, lr=RATE).step(max_norm=NORM)
    assert all(map(torch.equal, made, before))


def test_learning_rate_follows_param_groups(device):
    """84: the schedule writes a number there; a step that kept the first would ignore it."""
    rates = [RATE, RATE, RATE / 10]
    ours, _, _ = our_steps(device, 3, rates=rates)
    assert greatest_difference(ours, stock_steps(device, 3, rates=rates)[0]) < 1e-6
    assert greatest_difference(ours, stock_steps(device, 3)[0]) > 1e-3, "control: the change shows"


def test_gradients_elsewhere_are_found(device):
    """Each step's gradients lie where the allocator puts them; a stale table would read the last ones."""
    made, optimizer, _ = our_steps(device, 1)
    kept = [parameter.grad for parameter in made]
    set_gradients(made, 1)
    assert all(a.data_ptr() != b.grad.data_ptr() for a, b in zip(kept, made, strict=True))
    optimizer.step(max_norm=NORM)
    assert greatest_difference(made, stock_steps(device, 2)[0]) < 1e-6


def test_a_parameter_without_gradient_stands_still(device):
    """Adam counts the steps of each parameter by itself; as many others need tables of their own sizes."""
    made, optimizer, _ = our_steps(device, 1)
    stock, theirs = stock_steps(device, 1)
    for step, absent in enumerate((2, 6), start=1):
        for parameters_ in (made, stock):
            set_gradients(parameters_, step)
            parameters_[absent].grad = None
        torch.nn.utils.clip_grad_norm_(stock, NORM)
        theirs.step()
        optimizer.step(max_norm=NORM)
    assert ladder.served() == {"clipped_adam": {"triton": 3}}
    assert greatest_difference(made, stock) < 1e-6
    assert [optimizer.state[parameter]["step"].item() for parameter in made[1:4]] == [3, 2, 3]


def test_unaligned_gradients_are_read_as_they_lie(device):
    """DDP's gradients are views into buckets, at any multiple of 4 bytes; wide accesses there would fault."""
    made = parameters(device)
    optimizer = Adam(made, lr=RATE)
    set_gradients(made, 0)
    for parameter in made:
        bucket = torch.empty(parameter.numel() + 1, device=device)
        view = bucket[1:].as_strided(parameter.shape, parameter.stride(), 1)
        parameter.grad = view.copy_(parameter.grad)
    assert made[0].grad.data_ptr() % 16
    optimizer.step(max_norm=NORM)
    assert ladder.served() == {"clipped_adam": {"triton": 1}}
    aligned, _, _ = our_steps(device, 1)
    assert all(map(torch.equal, made, aligned))


def test_steps_repeat_bit_for_bit(device):
    """A sum in another order each time would end every comparison of two runs."""
    first = our_steps(device, 2)[0]
    for _ in range(20 if device == "cuda" else 1):
        assert all(map(torch.equal, first, our_steps(device, 2)[0]))


def test_loaded_state_stays_where_it_was(device):
    """A captured graph writes to these addresses; tensors replaced by a load would never move again."""
    made, optimizer, _ = our_steps(device, 2)
    addresses = [tensor.data_ptr() for tensor in optimizer.state_tensors()]
    saved = dict(optimizer.state_dict())
    saved["state"] = {
        index: {name: tensor.clone().contiguous().cpu() for name, tensor in entries.items()}
        for index, entries in saved["state"].items()
    }
    kept = [parameter.detach().clone() for parameter in made]
    set_gradients(made, 2)
    optimizer.step(max_norm=NORM)
    once = [parameter.detach().clone() for parameter in made]
    with torch.no_grad():
        for parameter, value in zip(made, kept, strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict(saved)
    set_gradients(made, 2)
    optimizer.step(max_norm=NORM)
    assert [tensor.data_ptr() for tensor in optimizer.state_tensors()] == addresses
    assert all(map(torch.equal, made, once))


def _transpose_a_gradient(made):
    made[0].grad = made[0].grad.contiguous()


def _transpose_a_moment(made, optimizer):
    state = optimizer.state[made[0]]
    state["exp_avg"] = state["exp_avg"].contiguous()


REFUSED = {
    "same order": lambda made, optimizer: _transpose_a_gradient(made),
    "order of memory": _transpose_a_moment,
    "float64": None,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_steps_are_taken_by_pytorch(device, reason):
    """Read in the order of the parameter's memory, a tensor of another order would be scrambled."""
    dtype = torch.float64 if reason == "float64" else torch.float32
    made = parameters(device, dtype)
    optimizer = Adam(made, lr=RATE)
    set_gradients(made, 0)
    if REFUSED[reason]:
        REFUSED[reason](made, optimizer)
    optimizer.step(max_norm=NORM)
    assert ladder.served() == {"clipped_adam": {"eager": 1}}
    assert reason in ladder.refusals()["clipped_adam"]["triton"][0]
    assert greatest_difference(made, stock_steps(device, 1)[0]) < 1e-6


@pytest.mark.parametrize(
    ("betas", "shapes", "reason"),
    [
        ((0.0, 0.999), [(5, 3)], "beta1 is 0.0"),
        ((0.9, 0.0), [(5, 3)], "beta2 is 0.0"),
        ((0.9, 0.999), [(5, 3), (0, 3)], "a parameter is empty"),
    ],
)
def test_steps_outside_the_kernels_formula_are_taken_by_pytorch(device, monkeypatch, caplog, betas, shapes, reason):
    """log(0) would turn the kernels off for all other steps; no program counts the steps of an empty tensor."""
    monkeypatch.setattr(adam_cases, "SHAPES", shapes)
    ours, stock = parameters(device), parameters(device, torch.float64)
    optimizer, theirs = Adam(ours, lr=RATE), torch.optim.Adam(stock, lr=RATE, betas=betas)
    optimizer.param_groups[0]["betas"] = betas
    for step in range(2):
        set_gradients(ours, step), set_gradients(stock, step)
        optimizer.step(max_norm=NORM)
        torch.nn.utils.clip_grad_norm_(stock, NORM)
        theirs.step()
    assert ladder.served() == {"clipped_adam": {"eager": 2}}
    assert reason in ladder.refusals()["clipped_adam"]["triton"][0]
    assert not caplog.records
    assert all(torch.allclose(a.double(), b, rtol=0, atol=1e-6) for a, b in zip(ours, stock, strict=True))
    assert {state["step"].item() for state in optimizer.state.values()} == {2}


def test_a_subclass_is_left_to_pytorch(device):
    """It may hold anything; its address need not be that of its elements."""

    class Sharded(torch.Tensor):
        pass

    made = parameters(device)
    set_gradients(made, 0)
    made[1].grad = made[1].grad.as_subclass(Sharded)
    Adam(made, lr=RATE).step(max_norm=NORM)
    assert ladder.refusals()["clipped_adam"]["triton"] == ["Sharded is a subclass of Tensor"]


def test_the_choice_does_not_ask_each_tensor_for_a_tangent(device, monkeypatch):
    """Asking takes longer than all other questions together, in every step, and nobody sends one here."""
    asked = []
    unpack = forward_ad.unpack_dual
    monkeypatch.setattr(forward_ad, "unpack_dual", lambda tensor: asked.append(tensor) or unpack(tensor))
    assert our_steps(device, 1)[2] == {"triton": 1}
    assert len(asked) == 1


@pytest.mark.parametrize("kernel", ["norm_kernel", "scalars_kernel", "update_kernel"])
def test_a_kernel_that_fails_leaves_the_step_to_pytorch(device, monkeypatch, kernel, caplog):
    """A step half taken would be taken once more by the next rung."""
    from scaffold.kernels.adam import kernels

    class Broken:
        def __getitem__(self, grid):
            raise RuntimeError("no such instruction")

    made = parameters(device)
    optimizer = Adam(made, lr=RATE)
    set_gradients(made, 0)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, kernel, Broken())
        optimizer.step(max_norm=NORM)
    assert ladder.served() == {"clipped_adam": {"eager": 1}}
    assert "no such instruction" in caplog.text
    assert greatest_difference(made, stock_steps(device, 1)[0]) < 1e-6
    assert {state["step"].item() for state in optimizer.state.values()} == {1}


def test_switch_turns_the_kernels_off(device, monkeypatch):
    """The reference could not be measured otherwise."""
    assert our_steps(device, 1)[2] == {"triton": 1}
    monkeypatch.setenv(op.SWITCH, "0")
    assert our_steps(device, 1)[2].get("eager") == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
@pytest.mark.gpu
@pytest.mark.parametrize("switch", ["1", "0"])
def test_steps_never_wait_and_can_be_captured(device, monkeypatch, switch):
    """85: a host read breaks the capture; a rate or count kept on the host would be frozen in the graph."""
    monkeypatch.setenv(op.SWITCH, switch)
    made = parameters(device)
    optimizer = Adam(made, lr=RATE)
    set_gradients(made, 0)
    optimizer.step(max_norm=NORM)
    static = [torch.zeros_like(parameter) for parameter in made]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for parameter, gradient in zip(made, static, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step(max_norm=NORM)
    rates = [RATE, RATE, RATE / 10]
    for step, rate in list(enumerate(rates))[1:]:
        set_gradients(made, step)
        for parameter, gradient in zip(made, static, strict=True):
            gradient.copy_(parameter.grad)
        optimizer.param_groups[0]["lr"] = rate
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        optimizer.publish_rate()
        graph.replay()
        torch.cuda.set_sync_debug_mode("default")
    expected = our_steps(device, 3, rates=rates)[0]
    assert all(map(torch.equal, made, expected))
    del graph


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
@pytest.mark.gpu
def test_eager_steps_never_wait(device):
    """Hazard 10: tables of addresses are sent in every step whose gradients lie elsewhere."""
    made, optimizer, _ = our_steps(device, 2)
    keep = []
    torch.cuda.synchronize()
    for step in range(2, 5):
        keep.extend(parameter.grad for parameter in made)
        set_gradients(made, step)
        torch.cuda.set_sync_debug_mode("error")
        optimizer.step(max_norm=NORM)
        torch.cuda.set_sync_debug_mode("default")
    assert greatest_difference(made, stock_steps(device, 5)[0]) < 2e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
@pytest.mark.gpu
def test_a_tensor_of_production_size(device, monkeypatch):
    """The largest kernel of scale 8 has 10^8 elements: the sum over chunks, and offsets, at that size."""
    monkeypatch.undo()
    tile = plan.TILE
    monkeypatch.setattr(adam_cases, "SHAPES", [(2048, 2048, 3, 3, 3), (64,)])
    ours, optimizer, served = our_steps(device, 3)
    assert served == {"triton": 3}
    assert greatest_difference(ours, stock_steps(device, 3)[0]) < 1e-6
    assert workspace_of(optimizer).tile == tile != adam_cases.TILE
