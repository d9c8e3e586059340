"""GroupNorm followed by ReLU, with or without max-pooling; also over a sample of which this process holds one block."""

from scaffold.kernels.group_norm.op import group_norm_relu, group_norm_relu_pool
from scaffold.kernels.group_norm.reference import Gather

__all__ = ["Gather", "group_norm_relu", "group_norm_relu_pool"]
