"""The closed form of the parameter count; check-config shows it before anything is built."""

import pytest
import torch

from scaffold.model.size import parameter_count
from scaffold.model.unet import UNet

REFERENCE = {1: 1_178_118, 2: 5_423_238, 3: 22_400_390, 4: 90_302_342, 5: 361_896_838, 6: 1_448_248_198}


@pytest.mark.parametrize(("layers", "count"), REFERENCE.items())
def test_reference_network(layers, count):
    """LLNL's sizes, 64 channels and 6 classes; another count is another benchmark."""
    assert parameter_count(layers, base_channels=64, out_channels=6) == count


@pytest.mark.parametrize(
    ("layers", "base", "classes", "colours"), [(4, 64, 6, 3), (1, 8, 4, 3), (2, 24, 3, 1), (3, 7, 2, 5)]
)
def test_formula_counts_what_is_built(layers, base, classes, colours):
    """The formula and the network must not drift apart, for any width."""
    with torch.device("meta"):
        network = UNet(colours, out_channels=classes, layers=layers, base_channels=base, groups=1)
    built = sum(parameter.numel() for parameter in network.parameters())
    assert parameter_count(layers, base, classes, colours) == built
