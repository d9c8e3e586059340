"""The end of the network in one operation: the last GroupNorm and ReLU, and the 1^3 convolution to the logits."""

from scaffold.kernels.head.op import group_norm_relu_pointwise

__all__ = ["group_norm_relu_pointwise"]
