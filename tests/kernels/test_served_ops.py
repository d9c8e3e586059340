"""Every operation that has kernels goes through its ladder, on a machine where the kernels fail."""

import sys

import pytest
import torch
from tensors import LAST
from torch import nn

from scaffold.kernels import group_norm, head, ladder, refusals, segmentation
from scaffold.kernels.convolution import pointwise, stem, upsample
from scaffold.kernels.group_norm import launch
from scaffold.kernels.ladder import KernelError


def image(channels, *, grad=True):
    return torch.randn(1, channels, 4, 4, 4).contiguous(memory_format=LAST).requires_grad_(grad)


def norm_case():
    return image(16), torch.rand(16, requires_grad=True), torch.rand(16, requires_grad=True), 4


def loss_case():
    return image(5), torch.randint(0, 5, (1, 4, 4, 4), dtype=torch.uint8), torch.rand(5)


def head_case():
    return image(16), torch.randn(5, 16, 1, 1, 1, requires_grad=True), torch.rand(5, requires_grad=True)


def last_case():
    x, weight, bias, groups = norm_case()
    return x, weight, bias, *head_case()[1:], groups


def up_case():
    skip = torch.randn(1, 16, 8, 8, 8).contiguous(memory_format=LAST).requires_grad_()
    return image(32), torch.randn(32, 16, 2, 2, 2, requires_grad=True), torch.rand(16, requires_grad=True), skip


def stem_case():
    return image(3, grad=False), torch.randn(16, 3, 3, 3, 3, requires_grad=True)


OPS = {
    "group_norm_relu": (group_norm.group_norm_relu, norm_case, "group_norm.kernels", "GROUPNORM"),
    "group_norm_relu_pool": (group_norm.group_norm_relu_pool, norm_case, "group_norm.kernels", "GROUPNORM"),
    "segmentation_sums": (segmentation.segmentation_sums, loss_case, "segmentation.kernels", "SEGMENTATION"),
    "pointwise_convolution": (pointwise.pointwise_convolution, head_case, "convolution.pointwise_kernels", "POINTWISE"),
    "group_norm_relu_pointwise": (head.group_norm_relu_pointwise, last_case, "group_norm.kernels", "HEAD"),
    "upsample_concatenate": (upsample.upsample_concatenate, up_case, "convolution.upsample_kernels", "UPSAMPLE"),
    "stem_convolution": (stem.stem_convolution, stem_case, "convolution.stem_kernels", "STEM"),
}


@pytest.fixture(params=list(OPS))
def op(request, monkeypatch):
    """Name and function of an operation, and a call of it, whose kernels are offered but cannot be imported."""
    function, case, module, switch = OPS[request.param]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(refusals, "_HAS_TRITON", True)
    monkeypatch.setitem(sys.modules, f"scaffold.kernels.{module}", None)
    # Where another test has imported it, its package would hand it out.
    package, _, name = module.rpartition(".")
    monkeypatch.delattr(f"scaffold.kernels.{package}.{name}", raising=False)
    for name in ("TRITON", "COMPILE"):
        monkeypatch.delenv(f"SCAFFOLD_{switch}_{name}", raising=False)
    if request.param == "group_norm_relu_pointwise":
        for name in ("GROUPNORM", "POINTWISE"):
            monkeypatch.setenv(f"SCAFFOLD_{name}_TRITON", "0")
    torch.manual_seed(2)
    return request.param, function, case(), f"SCAFFOLD_{switch}_TRITON"


def below(name):
    """What serves an operation without its kernels."""
    if name == "group_norm_relu_pointwise":
        return {name: {"separate": 1}, "group_norm_relu": {"eager": 1}, "pointwise_convolution": {"eager": 1}}
    return {name: {"eager": 1}}


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def test_no_ladder_is_left_out():
    """A new operation that is not listed above would go unchecked; Adam's step has tests of its own."""
    assert {*OPS, "clipped_adam"} == set(ladder._ladders)


def test_a_kernel_that_fails_costs_a_warning_and_changes_no_result(op, caplog, monkeypatch):
    """A launch outside its launch region would end the training instead."""
    name, function, arguments, switch = op
    found = outputs(function(*arguments))
    assert ladder.served() == below(name)
    (record,) = caplog.records
    assert "None in sys.modules" in record.getMessage()
    assert f"{switch}=0" in record.getMessage()
    monkeypatch.setenv(switch, "0")
    for one, stock in zip(found, outputs(function(*arguments)), strict=True):
        assert torch.equal(one, stock)
        one.square().sum().backward(retain_graph=True)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("site", [nn.Identity(), None])
def test_the_switch_passes_the_kernels_over(op, monkeypatch, caplog, site):
    """The name in the documentation must be the one that is read."""
    name, function, arguments, switch = op
    monkeypatch.setenv(switch, "off")
    keywords = {"site": site} if name != "segmentation_sums" else {}
    function(*arguments, **keywords)
    assert ladder.served() == below(name)
    assert not caplog.records


def test_a_users_error_is_raised_by_the_plain_formula(op):
    """A shape that does not fit is no reason to latch a rung."""
    name, function, (x, *others), _ = op
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        function(x[:, :-1], *others)
    assert not isinstance(raised.value, KernelError)
    ladder_of_op = ladder._ladders[name]
    assert not any(state.latched for state in ladder_of_op.states.values())


def test_a_compiled_region_holds_the_kernels_themselves(op):
    """A predicate or an operator that Dynamo cannot trace breaks the graph wherever the operation is used."""
    name, function, arguments, _ = op
    held = []

    def backend(graph, inputs):
        held.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    region = torch.compile(lambda *arguments: function(*arguments), fullgraph=True, backend=backend)
    with pytest.raises(KernelError):
        region(*arguments)
    assert any(f"scaffold.{name}" in target for target in held)
    assert ladder.served() == {}


@pytest.mark.parametrize("op", ["group_norm_relu", "group_norm_relu_pool"], indirect=True)
def test_a_users_error_is_none_of_the_compiler(op, monkeypatch):
    """Dynamo words any error in what it traces as its own, and would be switched off for it."""
    name, function, (*tensors, _), _ = op
    monkeypatch.setenv("SCAFFOLD_GROUPNORM_COMPILE", "1")
    with pytest.raises(RuntimeError, match="divisible"):
        function(*tensors, 3)
    assert not ladder._ladders[name].states["compiled"].latched


@pytest.mark.parametrize("op", ["group_norm_relu"], indirect=True)
def test_a_second_rung_gathers_no_second_time(op, monkeypatch):
    """The other ranks take part in one gathering; a second would wait for them for ever."""
    name, function, arguments, _ = op
    monkeypatch.setenv("SCAFFOLD_GROUPNORM_COMPILE", "1")
    monkeypatch.setattr(launch, "moments", lambda x, groups, planes: torch.ones(1, x.shape[2], groups, 3))
    gathered = []
    y = function(*arguments, partials=lambda rows: gathered.append(rows.shape[-1]) or rows)
    assert gathered == [3], "the kernels gathered, then failed"
    assert not ladder._ladders[name].states["compiled"].latched, "a hook is not offered to the compiler"
    assert ladder.served() == {name: {"eager": 1}}
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert gathered == [3, 2, 2], "each backward pass gathers its own"
