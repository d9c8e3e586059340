"""The benchmark's own tensor operations, each behind one function whose contract every implementation keeps."""

from scaffold.kernels.adam import clipped_adam
from scaffold.kernels.convolution import (
    convolution3,
    pointwise_convolution,
    stem_convolution,
    upsample_concatenate,
)
from scaffold.kernels.group_norm import group_norm_relu, group_norm_relu_pool
from scaffold.kernels.head import group_norm_relu_pointwise
from scaffold.kernels.segmentation import segmentation_sums

__all__ = [
    "clipped_adam",
    "convolution3",
    "group_norm_relu",
    "group_norm_relu_pointwise",
    "group_norm_relu_pool",
    "pointwise_convolution",
    "segmentation_sums",
    "stem_convolution",
    "upsample_concatenate",
]
