"""Adam with clipping of the gradient norm over all parameters of a network at once."""

from scaffold.kernels.adam.op import Workspaces, clipped_adam
from scaffold.kernels.adam.reference import AdamTensors, Rate, Settings

__all__ = ["AdamTensors", "Rate", "Settings", "Workspaces", "clipped_adam"]
