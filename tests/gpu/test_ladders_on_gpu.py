"""The ladders with real kernels, a real compiler and real exhaustion of memory."""

import itertools

import pytest
import torch

from scaffold.kernels import group_norm_relu, ladder
from scaffold.kernels.group_norm import launch
from scaffold.kernels.group_norm.op import COMPILE, TRITON, eager
from scaffold.model.unet import UNet

LAST = torch.channels_last_3d


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    for name in (TRITON, COMPILE):
        monkeypatch.delenv(name, raising=False)
    ladder.reset()
    yield
    ladder.reset()


def image(*shape, dtype=torch.bfloat16):
    torch.manual_seed(3)
    return torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=LAST)


def gradients(function, x, *others):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, *others)]
    y = function(*inputs)
    y.backward(torch.ones_like(y))
    return [y.detach(), *(tensor.grad for tensor in inputs)]


def test_the_compiled_rung_serves_without_the_kernels(monkeypatch):
    """On a machine whose Triton fails our kernels it is the only fast form; equal runs must give equal bits."""
    monkeypatch.setenv(TRITON, "0")
    weight, bias = torch.rand(64, device="cuda"), torch.rand(64, device="cuda")
    for extent in (8, 16, 24):
        x = image(2, 64, extent, extent, extent)
        with torch.autocast("cuda", torch.bfloat16):
            first, second = (gradients(lambda *a: group_norm_relu(*a, 8), x, weight, bias) for _ in range(2))
            plain = gradients(lambda *a: eager(*a, 8), x, weight, bias)
        for one, again, stock in zip(first, second, plain, strict=True):
            assert torch.equal(one, again)
            assert (one.dtype, one.stride()) == (stock.dtype, stock.stride())
            torch.testing.assert_close(one, stock, rtol=2e-2, atol=2e-2)
        with torch.inference_mode():
            torch.testing.assert_close(group_norm_relu(x, weight, bias, 8), plain[0], rtol=2e-2, atol=2e-2)
    assert ladder.served() == {"group_norm_relu": {"compiled": 9}}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_network_goes_on_when_a_kernel_fails_between_its_layers(monkeypatch, checkpointing):
    """The layers that were served keep their kernels, also when they are repeated in the backward pass."""

    def step():
        torch.manual_seed(1)
        network = UNet(out_channels=4, layers=2, base_channels=16, activation_checkpointing=checkpointing)
        network = network.to("cuda", memory_format=LAST)
        logits = network(image(1, 3, 16, 16, 16, dtype=torch.float32))
        logits.square().mean().backward()
        return [logits.detach(), *(parameter.grad for parameter in network.parameters())]

    whole = step()
    assert set(ladder.served()["group_norm_relu"]) == {"triton"}
    ladder.reset()
    normalise, calls = launch.normalise, []

    def fails_once(*arguments, **keywords):
        calls.append(None)
        if len(calls) == 4:
            with ladder.launch_region(launch.OP):
                raise RuntimeError("made to fail")
        return normalise(*arguments, **keywords)

    monkeypatch.setattr(launch, "normalise", fails_once)
    for one, other in zip(step(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
    counts = ladder.served()
    served = {rung for op in ("group_norm_relu", "group_norm_relu_pool") for rung in counts.get(op, {})}
    assert served == {"triton", "compiled"}


def test_exhausted_memory_latches_nothing():
    """The next step may have the memory; the run must not be slow for ever after."""
    x = image(1, 64, 64, 64, 64)
    weight, bias = torch.rand(64, device="cuda"), torch.rand(64, device="cuda")
    group_norm_relu(x, weight, bias, 8)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 20)) / total)
    taken = []
    try:
        # Earlier tests may have left blocks free that cannot be given back.
        with pytest.raises(torch.OutOfMemoryError):
            taken.extend(torch.empty_like(x) for _ in itertools.count())
        with pytest.raises(torch.OutOfMemoryError):
            group_norm_relu(x, weight, bias, 8)
    finally:
        taken.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    group_norm_relu(x, weight, bias, 8)
    assert ladder.served() == {"group_norm_relu": {"triton": 2}}
