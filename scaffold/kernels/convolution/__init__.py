"""Convolutions that the library serves badly, each behind one function whose contract every implementation keeps."""

from scaffold.kernels.convolution.pointwise import pointwise_convolution
from scaffold.kernels.convolution.slabs import convolution3
from scaffold.kernels.convolution.stem import stem_convolution
from scaffold.kernels.convolution.upsample import upsample_concatenate

__all__ = ["convolution3", "pointwise_convolution", "stem_convolution", "upsample_concatenate"]
