"""The benchmark's own tensor operations, each behind one function whose contract every implementation keeps."""

from scaffold.kernels.convolution.upsample import upsample_concatenate
from scaffold.kernels.group_norm import group_norm_relu
from scaffold.kernels.segmentation_sums import segmentation_sums

__all__ = ["group_norm_relu", "segmentation_sums", "upsample_concatenate"]
