"""Random logits and labels for the kernels of the loss sums."""

import torch
from tensors import LAST

from scaffold.kernels.segmentation import reference

PLAIN = torch.contiguous_format

SHAPE = (5, 13, 21)
"""1365 voxels: more tiles than programs in the interpreter, and a ragged last one."""


def make_case(device, classes=6, dtype=torch.float32, layout=LAST, labels=torch.uint8, shape=SHAPE, samples=2, seed=0):
    """Return logits, labels and weights; one sample lacks the last class."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((samples, classes, *shape), generator=generator)
    truth = torch.randint(0, classes, (samples, *shape), generator=generator)
    truth[0][truth[0] == classes - 1] = 0
    weights = torch.rand(classes, generator=generator) + 0.1
    return logits.to(device, dtype).contiguous(memory_format=layout), truth.to(device, labels), weights.to(device)


def cotangent_for(logits, seed=1):
    """Return a gradient of the sums."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((logits.shape[0], 1 + logits.shape[1], 2), generator=generator).to(logits.device)


def exact(logits, labels, weights, cotangent):
    """Return sums and gradient of the logits, in float64."""
    logits = logits.detach().double().requires_grad_()
    sums = reference.eager(logits, labels.long(), weights.double())
    return sums.detach(), torch.autograd.grad(sums, logits, cotangent.double())[0]


def found(function, logits, labels, weights, cotangent):
    """Return sums and gradient of the logits by ``function``."""
    logits = logits.detach().requires_grad_()
    sums = function(logits, labels, weights)
    return sums.detach(), torch.autograd.grad(sums, logits, cotangent)[0]
