"""The pointwise convolution where no kernel of ours runs, and its launches."""

import subprocess
import sys

import pytest
import torch

from scaffold.kernels import pointwise_convolution
from scaffold.kernels.convolution import pointwise
from scaffold.kernels.convolution.pointwise_plan import plan


@pytest.mark.skipif(torch.cuda.is_available(), reason="here kernels do run")
def test_without_a_gpu_it_is_pytorchs_and_triton_stays_out():
    """A machine without a GPU would fail at import, or pay for Triton's."""
    code = (
        "import sys, torch; from scaffold.kernels.convolution import pointwise as p;"
        "case = torch.rand(1, 16, 2, 2, 2), torch.rand(3, 16, 1, 1, 1), torch.rand(3);"
        "assert torch.equal(p.pointwise_convolution(*case), torch.nn.functional.conv3d(*case));"
        "print(p.declines(*case), 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["a", "tensor", "is", "not", "on", "a", "CUDA", "or", "HIP", "device", "False"]


def test_gradients_in_float64():
    """The fallback would lose a gradient."""
    case = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 2, 2, 2), (2, 3, 1, 1, 1), (2,))
    ]
    assert torch.autograd.gradcheck(pointwise_convolution, case)


def test_wrong_rank_is_declined_and_never_raises_in_the_predicate():
    """The predicate would hide PyTorch's message about what is wrong."""
    for case in [(torch.rand(16),) * 3, (torch.rand(1, 16, 2, 2), torch.rand(3, 16, 1, 1), torch.rand(3))]:
        assert pointwise.declines(*case) is not None


@pytest.mark.parametrize("rows", [1, 127, 129, 128**3, 256**3, 2**31 - 2**20])
@pytest.mark.parametrize(("inputs", "itemsize"), [(64, 2), (64, 4), (16, 2), (200, 4)])
def test_programs_cover_all_tiles_once(inputs, itemsize, rows):
    """Voxels would be left out, a program have nothing to do, or a tile's number overflow."""
    made = plan(inputs, 6, rows, itemsize, 132)
    tiles = -(-rows // made.block)
    assert made.programs * made.turns >= tiles > made.programs * (made.turns - 1)
    assert made.wide_in >= inputs
    assert made.block >= 16 <= made.wide_out
    assert made.programs * made.turns * made.block < 2**31
