"""The least that each operation moves and computes.

Each tensor of a site's result and each operand is moved once, at the width of the activations, unless what is
computed from all of a tensor is needed to read it again: GroupNorm's statistics and gradient sums, Adam's norm. What
a cache keeps between the two readings is not modelled, so a small site can do better than its roof.

Weights count, scratch and saved tensors (arguments of maxima, say) do not. A multiplication and an addition are two
operations; in the pointwise operations, where bytes are the limit, operations are counted roughly.
"""

from __future__ import annotations

from scaffold.kernels.bench import Cost
from scaffold.kernels.unet_bench.sites import CLASSES, Convolution, Level, Norm

_LABEL = 1
"""Bytes of a label."""


def group_norm_forward(site: Norm, itemsize: int) -> Cost:
    """Read for the statistics, read, write; the maxima are an eighth."""
    tensor = site.channels * site.edge**3
    return Cost(itemsize * tensor * (3 + site.pooled / 8), 10 * tensor)


def group_norm_backward(site: Norm, itemsize: int) -> Cost:
    """Read input and gradient for the sums, read both again, write."""
    tensor = site.channels * site.edge**3
    return Cost(itemsize * tensor * (5 + 2 * site.pooled / 8), 20 * tensor)


def convolution(site: Convolution, itemsize: int) -> Cost:
    """Any of the three directions: two of input, output and weight are read, the third is written."""
    voxels, products = site.edge**3, site.in_channels * site.out_channels
    elements = (site.in_channels + site.out_channels) * voxels + 27 * products
    return Cost(itemsize * elements, 2 * 27 * products * voxels)


def upsample_forward(site: Level, itemsize: int) -> Cost:
    """Read the coarse tensor (a quarter of the fine one in size), the skip and the weight; write both halves."""
    fine = site.channels * site.edge**3
    weight = 8 * 2 * site.channels**2
    return Cost(itemsize * (fine / 4 + fine + 2 * fine + weight), 2 * 2 * site.channels * fine)


def upsample_backward(site: Level, itemsize: int) -> Cost:
    """Read the gradient's second half, the coarse tensor and the weight; write the gradients of the latter two."""
    fine = site.channels * site.edge**3
    weight = 8 * 2 * site.channels**2
    return Cost(itemsize * (fine + 2 * fine / 4 + 2 * weight), 2 * 2 * 2 * site.channels * fine)


def head_forward(site: Level, itemsize: int) -> Cost:
    """Read the features, write the logits."""
    voxels = site.edge**3
    return Cost(itemsize * (site.channels + CLASSES) * voxels, 2 * site.channels * CLASSES * voxels)


def head_backward(site: Level, itemsize: int) -> Cost:
    """Read the features and the gradient of the logits, write the gradient of the features."""
    voxels = site.edge**3
    return Cost(itemsize * (2 * site.channels + CLASSES) * voxels, 4 * site.channels * CLASSES * voxels)


def last_norm_head_forward(site: Level, itemsize: int) -> Cost:
    """Read for the statistics, read, write the logits."""
    voxels = site.edge**3
    return Cost(itemsize * (2 * site.channels + CLASSES) * voxels, 2 * site.channels * (CLASSES + 4) * voxels)


def last_norm_head_backward(site: Level, itemsize: int) -> Cost:
    """Read input and gradient of the logits for the sums, read both again, write the gradient of the input."""
    voxels = site.edge**3
    return Cost(itemsize * (3 * site.channels + 2 * CLASSES) * voxels, 4 * site.channels * (CLASSES + 4) * voxels)


def loss_sums_forward(edge: int, itemsize: int) -> Cost:
    """Read logits and labels."""
    return Cost((itemsize * CLASSES + _LABEL) * edge**3, 10 * CLASSES * edge**3)


def loss_sums_backward(edge: int, itemsize: int) -> Cost:
    """Read logits and labels, write the gradient of the logits."""
    return Cost((2 * itemsize * CLASSES + _LABEL) * edge**3, 12 * CLASSES * edge**3)


def clipped_adam(parameters: int) -> Cost:
    """Read the gradients for the norm; read parameters, gradients and moments, write all but the gradients."""
    return Cost(4 * 8 * parameters, 16 * parameters)
