"""The benchmark's own tensor operations, each behind one function whose contract every implementation keeps."""

from scaffold.kernels.convolution.slabs import convolution3
from scaffold.kernels.convolution.stem import stem_convolution
from scaffold.kernels.group_norm import group_norm_relu
from scaffold.kernels.segmentation import segmentation_sums

__all__ = ["convolution3", "group_norm_relu", "segmentation_sums", "stem_convolution"]
