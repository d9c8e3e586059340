"""Inputs of GroupNorm in channels-last order, and gradients through any implementation of it."""

import torch
from tensors import LAST


def make_case(shape, dtype=torch.float32, *, device="cpu", mean=0.0, parameters=torch.float32, seed=0):
    """Return x of ``shape``, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) + mean
    weight, bias = torch.rand(shape[1], generator=generator) + 0.5, torch.randn(shape[1], generator=generator)
    return channels_last(x.to(device, dtype)), weight.to(device, parameters), bias.to(device, parameters)


def channels_last(x):
    # A copy even where strides are ambiguous, so that they are those of the channels-last order.
    return torch.empty_like(x, memory_format=LAST).copy_(x)


def random_like(*outputs, seed=1):
    """Return a gradient for each output."""
    generator = torch.Generator().manual_seed(seed)
    return [channels_last(torch.randn(o.shape, generator=generator).to(o.device, o.dtype)) for o in outputs]


def with_gradients(function, inputs, gradients=None):
    """Return the outputs of ``function(*inputs)`` and the inputs' gradients."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    torch.autograd.backward(outputs, gradients or random_like(*outputs))
    return [output.detach() for output in outputs], [tensor.grad for tensor in inputs]


def everything(*arguments):
    """Like ``with_gradients``, in one list."""
    outputs, gradients = with_gradients(*arguments)
    return [*outputs, *gradients]
