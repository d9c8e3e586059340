"""The dtype that autocast gives operands, against PyTorch's own convolution."""

import pytest
import torch
from torch.nn.functional import conv3d

from scaffold.kernels.autocast import compute_dtype

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_are_cast_as_the_library_casts_them(dtype, on):
    """A kernel would round what the library does not, or the two halves of a concatenation differ in dtype."""
    x = torch.ones((1, 1, 2, 2, 2), dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        assert compute_dtype(x) == conv3d(x, torch.ones((1, 1, 1, 1, 1), dtype=dtype)).dtype


def test_integers_are_no_operands():
    """Labels would lose digits."""
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(torch.ones(1, dtype=torch.int64)) == torch.int64
