"""Inputs of the fused head, and its gradients through any implementation."""

import torch
import torch.nn.functional as F
from norm_cases import everything, random_like
from norm_cases import make_case as make_norm_case

from scaffold.kernels.head import op

NAMES = ("logits", "dx", "norm weight", "norm bias", "weight", "bias")


def make_case(device, shape=(1, 64, 3, 5, 7), classes=6, dtype=torch.float32, parameters=None, mean=0.0):
    """Return x, the normalisation's weight and bias, the convolution's, and a gradient of the logits."""
    generator = torch.Generator().manual_seed(classes)
    x, norm_weight, norm_bias = make_norm_case(shape, dtype, device=device, mean=mean)
    weight = torch.randn((classes, shape[1], 1, 1, 1), generator=generator) / shape[1] ** 0.5
    bias = torch.randn(classes, generator=generator)
    weight, bias = (tensor.to(device, parameters or dtype) for tensor in (weight, bias))
    (gradient,) = random_like(torch.empty((shape[0], classes, *shape[2:]), dtype=dtype, device=device))
    return (x, norm_weight, norm_bias, weight, bias), gradient


def run(inputs, gradient, groups, function=op.group_norm_relu_pointwise):
    """Return the logits and all gradients."""
    return everything(lambda *tensors: function(*tensors, groups), inputs, [gradient])


def exact_run(inputs, gradient, groups):
    """Return the same in float64, by PyTorch's own functions; the parameters are rounded as the convolution does."""
    *norm, weight, bias = inputs
    inputs = [*norm, weight.to(norm[0].dtype), bias.to(norm[0].dtype)]
    return run([tensor.double() for tensor in inputs], gradient.double(), groups, formula)


def formula(x, norm_weight, norm_bias, weight, bias, groups):
    return F.conv3d(F.relu(F.group_norm(x, groups, norm_weight, norm_bias, 1e-5)), weight, bias)
