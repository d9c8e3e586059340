"""The ladder: which rung serves a call, what counts as its failure, and what is never swallowed."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from scaffold.kernels import ladder
from scaffold.kernels.ladder import KernelError, Ladder, Rung, launch_region
from scaffold.kernels.refusals import not_plain

SWITCH = "SCAFFOLD_TEST_OP_FAST"


class Fast(torch.autograd.Function):
    """Doubles; saves other tensors than the plain formula, as a kernel does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.new_ones(1, 8))
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy * ctx.saved_tensors[1][0, 0]


def plain(x):
    return None if x is None else x * x.new_full((64,), 2.0)[:1]


class Op:
    """An operation ``2 * x`` of two rungs, of which the first fails on demand."""

    def __init__(self, decline=None, hesitates=None):
        self.failure, self.decline = None, decline
        self.ladder = Ladder(
            "test_op",
            [
                Rung("fast", SWITCH, self.declines, self.fast, hesitates),
                Rung("plain", None, None, plain),
            ],
        )

    def declines(self, x):
        return self.decline or not_plain(x) or (None if x.dim() else "it is a scalar")

    def fast(self, x):
        with launch_region("test_op"):
            if self.failure:
                raise self.failure
        return Fast.apply(x)

    def __call__(self, x, site=None):
        return self.ladder(x, site=site)

    @property
    def served(self):
        return ladder.served().get("test_op", {})

    @property
    def latched(self):
        return self.ladder.states["fast"].latched


class Block(nn.Module):
    """``4 * x**2``; passes itself as the site."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        # The square saves its input, so that a recomputation does not stop before the operation is done.
        return self.op(x, site=self).square()


@pytest.fixture
def make(monkeypatch):
    """Make an ``Op`` whose ladder and override are gone after the test."""
    monkeypatch.setattr(ladder, "_ladders", {})
    monkeypatch.delenv(SWITCH, raising=False)
    yield Op
    ladder.set_switch(SWITCH, None)


@pytest.fixture
def op(make):
    return make()


def ones(*, grad=False):
    return torch.ones(4, requires_grad=grad)


def test_a_switch_is_a_reason_like_any_other(op, monkeypatch):
    """The log of a training would not say why slower code ran."""
    monkeypatch.setenv(SWITCH, "0")
    op(ones())
    assert op.served == {"plain": 1}
    assert ladder.refusals() == {"test_op": {"fast": [f"switched off by {SWITCH}"]}}


def test_the_first_rung_that_does_not_decline_serves(op):
    """The counts are what a report of a benchmark rests on."""
    op(ones())
    op.decline = "too small"
    op(ones())
    op(ones())
    assert op.served == {"fast": 1, "plain": 2}
    assert ladder.refusals() == {"test_op": {"fast": ["too small"]}}
    ladder.reset()
    assert (ladder.served(), ladder.refusals()) == ({}, {})


def test_a_failed_kernel_is_told_once_and_not_tried_again(op, caplog):
    """A kernel that does not compile must cost one warning, not the run, and not a compilation at each call."""
    op.failure = RuntimeError("ptxas exited with 255")
    assert torch.equal(Block(op)(ones()), 4 * ones())
    op.failure = RuntimeError("tried again")
    assert torch.equal(Block(op)(ones()), 4 * ones())
    assert op.served == {"plain": 2}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("test_op", "fast", "ptxas exited with 255", f"{SWITCH}=0"):
        assert part in record.getMessage()


def test_the_failure_of_a_site_that_kept_its_rung_is_not_told_again(op, caplog):
    """It is the same kernel; each module of a network would add a line."""
    block = Block(op)
    block(ones())
    op.failure = RuntimeError("no")
    op(ones())
    block(ones())
    assert op.served == {"fast": 1, "plain": 2}
    assert len(caplog.records) == 1


def test_a_site_that_was_served_keeps_its_rung(op):
    """Its activations may wait for a recomputation that must save the same tensors."""
    proven, other = Block(op), Block(op)
    proven(ones())
    op.failure = RuntimeError("no")
    other(ones())
    op.failure = None
    proven(ones())
    other(ones())
    op(ones())
    assert op.served == {"fast": 2, "plain": 3}
    op.decline = "another shape"
    proven(ones())
    assert op.served["plain"] == 4, "a site is no reason to give a rung what it cannot serve"


def test_a_site_that_fails_itself_moves_to_the_rung_below(op):
    """Tried again at its next call, the broken rung would serve the recomputation but not the forward pass."""
    block, x = Block(op), ones(grad=True)
    block(x)
    op.failure = RuntimeError("no")
    y = checkpoint(block, x, use_reentrant=False)
    op.failure = None
    y.sum().backward()
    assert torch.equal(x.grad, 8 * ones())
    assert op.served == {"fast": 1, "plain": 2}


@pytest.mark.parametrize("rung", ["fast", "plain"])
def test_recomputation_takes_the_rung_of_the_forward_pass(op, rung):
    """Whatever becomes of the rung in between, since another saves other tensors."""
    block, x = Block(op), ones(grad=True)
    op.failure = RuntimeError("no") if rung == "plain" else None
    y = checkpoint(block, x, use_reentrant=False)
    op.failure = RuntimeError("no")
    op(ones())
    op.failure = None
    y.sum().backward()
    assert torch.equal(x.grad, 8 * ones())
    assert op.served == ({"plain": 3} if rung == "plain" else {"fast": 2, "plain": 1})


def test_without_a_site_a_checkpoint_notices_that_the_rung_changed(op):
    """Control of the two tests above: the two rungs are told apart by what they save."""
    y = checkpoint(lambda x: op(x).square(), ones(grad=True), use_reentrant=False)
    op.failure = RuntimeError("no")
    with pytest.raises(CheckpointError):
        y.sum().backward()


def test_a_failure_during_recomputation_is_raised(op):
    """The rung below saves other tensors than the forward pass did: falling back would hide the cause."""
    y = checkpoint(Block(op), ones(grad=True), use_reentrant=False)
    op.failure = RuntimeError("device is tired")
    with pytest.raises(KernelError, match="device is tired"):
        y.sum().backward()
    assert not op.latched


class _Interrupt(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Triton Error [HIP]: Out of memory"),
        torch.AcceleratorError("illegal memory access"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
        RuntimeError("Triton Error [CUDA]: uncorrectable ECC error encountered"),
        RuntimeError("Triton Error [HIP]:  Code: 719, Messsage: unspecified launch failure"),
        KeyboardInterrupt(),
        _Interrupt(),
    ],
    ids=repr,
)
def test_what_the_rung_below_cannot_mend_passes_as_it_is(op, error):
    """Transient exhaustion would slow the rest of the run; a fault or Ctrl-C must end it."""
    op.failure = error
    with pytest.raises(type(error)) as raised:
        op(ones())
    assert raised.value is error
    assert not op.latched
    op.failure = None
    op(ones())
    assert op.served == {"fast": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Triton Error [CUDA]: invalid device function",
        "Triton Error [CUDA]: too many resources requested for launch",
        "Triton Error [HIP]:  Code: 209, Messsage: no kernel image is available for execution on the device",
        "PassManager::run failed: illegal instruction, misaligned operand",
    ],
)
def test_a_kernel_that_the_device_refuses_is_no_fault_of_the_device(op, text):
    """Control of the test above: a machine that cannot run a kernel must still train."""
    op.failure = RuntimeError(text)
    assert torch.equal(op(ones()), 2 * ones())
    assert op.latched


@pytest.mark.parametrize("error", [ValueError("out_dtype"), RuntimeError("must be divisible"), TypeError("x")])
def test_a_users_error_is_no_reason_to_fall_back(op, monkeypatch, error):
    """Outside the launch region nothing is known to be the kernel's fault."""

    def refuse(*arguments):
        raise error

    monkeypatch.setattr(Fast, "apply", refuse)
    with pytest.raises(type(error)) as raised:
        op(ones())
    assert raised.value is error
    assert not op.latched
    assert op.served == {}


def test_the_kernel_error_names_operation_and_remedy_and_keeps_its_cause(op):
    """In a backward pass there is no rung to fall to: this message is all that the user gets."""
    cause = ValueError("arange's range must be a power of 2")
    with pytest.raises(KernelError, match=f"test_op.*power of 2.*{SWITCH}=0") as raised, launch_region("test_op"):
        raise cause
    assert raised.value.__cause__ is cause
    with pytest.raises(KernelError) as again, launch_region("outer"):
        raise raised.value
    assert again.value is raised.value


def test_the_early_stop_of_a_recomputation_passes(op):
    """Checkpointing raises it inside the operation that saves the last tensor; it is no failure of that one."""
    x, ends = ones(grad=True), []

    def block(x):
        y = op(x)
        ends.append(y)
        return y

    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert len(ends) == 1, "control: the recomputation stopped early"
    assert torch.equal(x.grad, 2 * ones())
    assert not op.latched
    assert op.served == {"fast": 1}


def test_no_hook_on_saved_tensors_is_left_behind(op):
    """A checkpoint's hooks, left in place by a failure, would recompute for tensors of the next step."""
    hooks = []

    def block(x):
        hooks.append(_hooks())
        return op(x).square()

    op.failure = RuntimeError("no")
    checkpoint(block, ones(grad=True), use_reentrant=False).sum().backward()
    assert None not in hooks, "control: within the checkpoint there are hooks"
    assert _hooks() is None


def _hooks():
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def test_a_predicate_that_raises_is_told_once_and_passes_the_call_on(op, caplog):
    """A defect in a predicate must not end a training, nor switch the rung off for calls that it can judge."""
    for _ in range(2):
        assert op(None) is None
    (record,) = caplog.records
    assert "NoneType" in record.getMessage()
    op(ones())
    assert op.served == {"plain": 2, "fast": 1}


@pytest.mark.parametrize(("word", "served"), [("1", "fast"), ("0", "plain"), (None, "plain")])
def test_a_switch_that_is_on_overrules_hesitation_but_no_refusal(make, monkeypatch, word, served):
    """A user who asks for a rung gets it where it can work, and stock results where it cannot."""
    op = make(hesitates=lambda x: "does not pay")
    if word:
        monkeypatch.setenv(SWITCH, word)
    op(ones())
    assert op.served == {served: 1}
    op.decline = "cannot"
    op(ones())
    assert op.served["plain"] == (1 if served == "fast" else 2)


def test_setting_a_switch_answers_with_the_override_before(op, monkeypatch):
    """A caller that restores what it found must not leave an override behind."""
    assert ladder.set_switch(SWITCH, False) is None
    op(ones())
    assert ladder.set_switch(SWITCH, True) is False
    monkeypatch.setenv(SWITCH, "0")
    op(ones())
    assert ladder.set_switch(SWITCH, None) is True
    op(ones())
    assert op.served == {"plain": 2, "fast": 1}
    with pytest.raises(ValueError, match=f"SCAFFOLD_TYPO is no switch.*{SWITCH}"):
        ladder.set_switch("SCAFFOLD_TYPO", True)


def test_only_switching_on_gives_a_failed_rung_another_chance(op):
    """Taking an override back must not bring back what failed."""
    op.failure = RuntimeError("no")
    op(ones())
    op.failure = None
    ladder.set_switch(SWITCH, None)
    op(ones())
    assert op.served == {"plain": 2}
    ladder.set_switch(SWITCH, True)
    op(ones())
    assert op.served == {"plain": 2, "fast": 1}


def test_a_ladder_ends_with_a_rung_that_serves_anything():
    """Otherwise a call could find no rung at all."""
    for last in (Rung("fast", SWITCH, None, torch.clone), Rung("fast", None, lambda x: None, torch.clone)):
        with pytest.raises(ValueError, match="must serve any call"):
            Ladder("test_op", [last])


def test_a_name_has_one_ladder(make):
    """The second would take the first one's place in counts, switches and resets, without a word."""
    first = make()
    with pytest.raises(ValueError, match="test_op: there is a ladder"):
        make()
    first(ones())
    assert first.served == {"fast": 1}


def test_functorch_transforms_and_subclasses_take_the_plain_formula(op):
    """An opaque operator has no batching rule, and a subclass may hold a shard of the tensor."""
    assert torch.equal(torch.func.vmap(op)(torch.ones(3, 4)), 2 * torch.ones(3, 4))
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(ones()), 2 * ones())
    value, tangent = torch.func.jvp(op, (ones(),), (ones(),))
    assert torch.equal(value, tangent)

    class Shard(torch.Tensor):
        pass

    assert type(op(ones().as_subclass(Shard))) is Shard
    assert op.served == {"plain": 4}
    assert not op.latched
    op(ones())
    op(nn.Parameter(ones()))
    assert op.served["fast"] == 2, "control: plain tensors and parameters are served"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(op, mode):
    """Validation takes the rungs of training, and proves sites likewise."""
    block = Block(op)
    with mode():
        assert torch.equal(block(ones()), 4 * ones())
    op.failure = RuntimeError("no")
    op(ones())
    op.failure = None
    block(ones())
    assert op.served == {"fast": 2, "plain": 1}


@pytest.mark.parametrize("decline", [None, "too small"])
def test_a_compiled_region_holds_the_rung_without_a_graph_break(op, decline):
    """A break would undo what the region was compiled for; a record that it reads would recompile it at each change."""
    op.decline = decline
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    block = Block(op)
    region = torch.compile(block, fullgraph=True, backend=counter)
    for _ in range(3):
        x = ones(grad=True)
        region(x).sum().backward()
        assert torch.equal(x.grad, 8 * ones())
        assert ladder.served() == ladder.refusals() == {}
        op.ladder(ones(), site=block)
        ladder.reset()
    assert counter.frame_count == 1
    targets = {str(node.target) for node in counter.graphs[0].graph.nodes}
    assert any("autograd_function" in target for target in targets) == (decline is None)


def test_a_launch_goes_to_the_device_of_its_tensors(monkeypatch):
    """Triton launches on the current device, where the tensors' addresses mean nothing."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device.index) or nullcontext())
    for index in (0, 1):
        tensor = SimpleNamespace(is_cuda=True, get_device=lambda index=index: index, device=torch.device("cuda", index))
        with launch_region("test_op", on=tensor):
            pass
    assert entered == [1]
    with launch_region("test_op", on=ones()):
        assert entered == [1], "on a CPU there is nothing to go to"
