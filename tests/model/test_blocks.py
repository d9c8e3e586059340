"""The normalised activation of the U-Net."""

import pytest

from scaffold.model.blocks import GroupNormReLU


def test_groups_must_divide_the_channels():
    """The message must name both numbers."""
    with pytest.raises(ValueError, match="groups = 3 must divide the 8 channels"):
        GroupNormReLU(3, 8)
