"""The step up in PyTorch's operators: padding, concatenation, and what takes a call on a machine without a GPU."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tensors import LAST

from scaffold.kernels.convolution import upsample
from scaffold.kernels.convolution.upsample import concatenate, pad_to


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


def inputs(x=(2, 8, 2, 3, 2), skip=(2, 4, 4, 7, 4)):
    """Return (x, weight, bias, skip) in float64."""
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for shape in (x, (8, 4, 2, 2, 2), (4,), skip)]


@pytest.mark.parametrize("skip", [(2, 4, 4, 5, 4), (2, 4, 3, 6, 4), (2, 3, 4, 6, 4), (1, 4, 4, 6, 4), (2, 4, 4, 6, 3)])
def test_a_skip_that_does_not_fit_is_refused(skip):
    """Smaller, it would crop the step up without a word; of other channels, it would change the network."""
    assert upsample.upsample_concatenate(*inputs()).shape == (2, 8, 4, 7, 4), "control: a larger one is padded to"
    sizes = r"\(2, 4, 4, 6, 4\)"
    with pytest.raises(ValueError, match=sizes) as raised:
        upsample.upsample_concatenate(*inputs(skip=skip))
    assert str(skip) in str(raised.value)


def test_vmap_over_samples():
    """Memory formats cannot be asked for there: an ensemble, or gradients per sample, would end with an error."""
    x, weight, bias, skip = inputs()
    function = torch.func.vmap(lambda x, skip: upsample.upsample_concatenate(x[None], weight, bias, skip[None])[0])
    torch.testing.assert_close(function(x, skip), upsample.upsample_concatenate(x, weight, bias, skip))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes the call")
def test_cpu_tensors_get_the_eager_form_bit_for_bit(monkeypatch):
    """Idea 33: a CPU run would try to launch, or compute something else than PyTorch."""
    torch.manual_seed(0)
    x, skip = (torch.randn(shape).contiguous(memory_format=LAST) for shape in ((1, 32, 2, 2, 2), (1, 16, 5, 4, 4)))
    weight, bias = torch.randn(32, 16, 2, 2, 2), torch.randn(16)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert upsample.declines(x, weight, bias, skip) == "a tensor is not on a CUDA or HIP device"
    up = F.pad(F.conv_transpose3d(x, weight, bias, stride=2), (0, 0, 0, 0, 0, 1))
    assert torch.equal(upsample.upsample_concatenate(x, weight, bias, skip), torch.cat((skip, up), dim=1))


def test_importing_the_operation_does_not_import_triton():
    """Idea 34: a machine without Triton could not import the package."""
    program = "import sys, scaffold.kernels; assert 'torch' in sys.modules; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
