"""The benchmark's own tensor operations, each behind one function whose contract every implementation keeps."""

from scaffold.kernels.convolution import pointwise_convolution
from scaffold.kernels.group_norm import group_norm_relu
from scaffold.kernels.segmentation import segmentation_sums

__all__ = ["group_norm_relu", "pointwise_convolution", "segmentation_sums"]
