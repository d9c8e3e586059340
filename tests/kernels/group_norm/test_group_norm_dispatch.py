"""Which calls the kernels take."""

import re
import subprocess
import sys

import pytest
import torch
from norm_cases import channels_last, make_case
from tensors import LAST

from scaffold.kernels import refusals
from scaffold.kernels.group_norm import launch, op
from scaffold.kernels.ladder import KernelError

SHAPE = (2, 16, 2, 4, 4)


@pytest.fixture(autouse=True)
def _as_if_interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(refusals, "_HAS_TRITON", True)


def case(x=lambda x: x, weight=lambda w: w, groups=4, shape=SHAPE, **options):
    tensors = make_case(shape, options.pop("dtype", torch.float32))
    return (x(tensors[0]), weight(tensors[1]), tensors[2], groups), options


class Subclass(torch.Tensor):
    """Not exactly a tensor."""


REFUSED = {
    "dense in channels-last": case(x=lambda x: x.contiguous()),
    "5-D": case(x=lambda x: x[:, :, 0]),
    "dense": case(x=lambda x: x[..., ::2]),
    "float64": case(dtype=torch.float64),
    "bfloat16 .* neither": case(weight=lambda w: w.bfloat16()),
    "5 groups": case(groups=5),
    "0 groups": case(groups=0),
    "weight .15,.": case(weight=lambda w: w[1:]),
    "one element each": case(shape=(3, 16, 1, 1, 1), groups=16),
    "empty": case(shape=(0, 16, 2, 2, 2)),
    "window": case(shape=(1, 16, 2, 1, 2), pool=True),
    "too many channels": case(shape=(1, 2**14, 1, 1, 2), groups=1),
    "subclass": case(x=lambda x: x.as_subclass(Subclass)),
    "on meta and": case(weight=lambda w: w.to("meta")),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_calls_that_the_kernels_cannot_serve_are_declined(reason):
    """A kernel would read what is not there; each call differs from an accepted one in one respect."""
    arguments, options = REFUSED[reason]
    assert re.search(reason, op.declines(*arguments, **options) or "")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [SHAPE, (2, 16, 1, 1, 1), (1, 16, 3, 5, 7), (1, 16, 2, 2, 2)])
def test_calls_that_the_kernels_serve(shape, dtype):
    """Control of the refusals: nothing is declined that the kernels could do."""
    x, weight, bias = make_case(shape, dtype)
    for parameter in (weight, torch.nn.Parameter(weight), weight.to(dtype)):
        assert op.declines(x, parameter, bias, 4) is None
    assert (op.declines(x, weight, bias, 4, pool=True) is None) == (min(shape[2:]) >= 2)


def test_transforms_and_machines_without_a_gpu_or_triton_are_declined(monkeypatch):
    """The operators have no rule for vmap; and on a CPU nothing could run."""
    x, weight, bias = make_case(SHAPE)
    reasons = []

    def call(x):
        reasons.append(op.declines(x, weight, bias, 4))
        return op.group_norm_relu(x, weight, bias, 4).sum()

    torch.func.grad(call)(x)
    assert "functorch" in reasons[0]
    monkeypatch.setattr(refusals, "_HAS_TRITON", False)
    assert "not installed" in op.declines(x, weight, bias, 4)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "not on a CUDA or HIP device" in op.declines(x, weight, bias, 4)


def test_nothing_is_launched_for_a_declined_call(monkeypatch):
    """A refusal would be computed by the kernels after all."""
    monkeypatch.setattr(launch, "run", lambda *_, **__: pytest.fail("launched"))
    x, weight, bias = make_case(SHAPE, torch.float64)
    assert op.group_norm_relu(x, weight, bias, 4).is_contiguous(memory_format=LAST)
    y, pooled = op.group_norm_relu_pool(x, weight, bias, 4)
    assert y.is_contiguous(memory_format=LAST)
    assert pooled.is_contiguous(memory_format=LAST)
    with pytest.raises(RuntimeError, match="divisible"):
        op.group_norm_relu(channels_last(x.float()), weight, bias, 3)


@pytest.mark.parametrize("name", ["group_norm_relu", "group_norm_relu_pool"])
@pytest.mark.parametrize("kernel", ["statistics", "normalise", "gradient_sums", "input_gradient"])
def test_a_failure_is_told_of_the_operation_that_was_called(monkeypatch, caplog, name, kernel):
    """The log would blame one operation where another one has become slow; they share their kernels."""

    def run(launched, *_):
        if launched == kernel:
            raise RuntimeError("made to fail")

    monkeypatch.setattr(launch, "run", run)
    x, weight, bias = make_case(SHAPE)
    # Of the pooling operation the backward pass may get the gradient of y alone.
    y = getattr(op, name)(x.requires_grad_(), weight, bias, 4)
    y = y[0] if isinstance(y, tuple) else y
    if kernel in ("gradient_sums", "input_gradient"):
        with pytest.raises(KernelError, match=f"a kernel of {name} failed.*made to fail"):
            y.sum().backward()
    else:
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{name}: triton is off")
        assert f"a kernel of {name} failed: RuntimeError: made to fail" in record.getMessage()


def test_import_leaves_triton_alone():
    """A machine without a GPU, or without Triton, could not import the package."""
    code = "import sys; sys.modules['triton'] = None; import scaffold.kernels.group_norm.op"
    subprocess.run([sys.executable, "-c", code], check=True)
