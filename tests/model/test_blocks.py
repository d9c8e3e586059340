"""The step up of the U-Net: padding and concatenation."""

import pytest
import torch
import torch.nn.functional as F

from scaffold.kernels.convolution.upsample import concatenate, pad_to
from scaffold.model.blocks import GroupNormReLU

LAST = torch.channels_last_3d


def test_padding_goes_to_the_far_side_only_where_needed():
    """A row at the near side would shift the decoder against the skip."""
    x = torch.ones(1, 2, 2, 4, 4)
    padded = pad_to(x, torch.empty(1, 2, 3, 4, 5))
    assert padded.shape == (1, 2, 3, 4, 5)
    assert torch.equal(padded[:, :, :2, :, :4], x)
    assert padded[:, :, 2].abs().sum() == padded[..., 4].abs().sum() == 0


def test_nothing_to_pad_returns_the_tensor_itself():
    """Hazard 65: a pad call with nothing to pad copies the largest tensors of the network."""
    x = torch.ones(1, 2, 4, 4, 4)
    assert pad_to(x, torch.empty(1, 7, 4, 4, 4)) is x


@pytest.mark.parametrize("mixed", [False, True])
def test_concatenation_keeps_channels_last(mixed):
    """Hazard 65: a contiguous result would be transposed back by every convolution after it."""
    skip = torch.randn(1, 4, 6, 6, 6).contiguous(memory_format=LAST)
    up = torch.randn(1, 4, 6, 6, 6)
    plain = torch.cat((skip, up), dim=1)
    assert not plain.is_contiguous(memory_format=LAST), "control: torch.cat alone loses the order of mixed halves"
    joined = concatenate(skip, up if mixed else up.contiguous(memory_format=LAST))
    assert joined.is_contiguous(memory_format=LAST)
    assert torch.equal(joined, plain)


def test_concatenation_has_the_dtype_of_its_consumer_and_the_bits_of_promotion():
    """The skip in float32 and the rest in bfloat16 must cost no float32 copy and change no result."""
    torch.manual_seed(0)
    skip, up = torch.randn(2, 8, 8, 8, 8), torch.randn(2, 8, 8, 8, 8, dtype=torch.bfloat16)
    weight = torch.randn(8, 16, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        joined = concatenate(skip, up)
        promoted = torch.cat((skip, up.float()), dim=1)
        assert (joined.dtype, promoted.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(F.conv3d(joined, weight), F.conv3d(promoted, weight))
    assert concatenate(skip.double(), up.double()).dtype == torch.float64


def test_groups_must_divide_the_channels():
    """The message must name both numbers."""
    with pytest.raises(ValueError, match="groups = 3 must divide the 8 channels"):
        GroupNormReLU(3, 8)
