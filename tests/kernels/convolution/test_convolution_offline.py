"""The stem's kernels as compiled for a Hopper GPU and for an MI300, on a machine without either."""

import re

import kernel_needs
import pytest
from production_kernels import MI300, stem_convolution

from scaffold.kernels.resources import resources

pytestmark = kernel_needs.COMPILER

KERNELS = ("forward", "weight_gradient")


@pytest.fixture(scope="module")
def compiled():
    """{kernel: the compiled form that scales 7 and 8 launch}."""
    return {name: stem_convolution(name) for name in KERNELS}


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_widest_stem_spills_no_registers(name, half):
    """A tile would be tuned beyond the registers of a thread, and run from memory."""
    assert resources(stem_convolution(name, out_channels=128, half=half)).stack_bytes == 0


def test_image_is_loaded_two_values_at_a_time(compiled):
    """Windows would start at odd offsets, and take twice as many loads, which the forward pass is bound by."""
    pairs, windows_of_16, threads = 64, 8, 128
    loads = pairs * windows_of_16 * 16 // (threads * 2)
    assert pair_loads(compiled["forward"]) == loads
    # Control: a width that is no multiple of 2 must not be loaded so.
    odd = stem_convolution("forward", divisible=("D", "H"))
    assert pair_loads(odd) == 0


def pair_loads(kernel):
    """Return how many loads of two values there are."""
    return len(re.findall(r"ld\.global[\w.]*\.v2", kernel.asm["ptx"]))


@pytest.mark.parametrize("name", KERNELS)
def test_products_run_on_the_tensor_cores_and_none_is_left_in_flight(name, compiled):
    """Products fall to scalar code, or one's operand would be overwritten by the next turn while it reads it."""
    ttgir = compiled[name].asm["ttgir"]
    assert "wgmma.mma_async" in compiled[name].asm["ptx"]
    waits = re.findall(r"warp_group_dot_wait .*pendings = (\d+)", ttgir)
    assert waits
    assert set(waits) == {"0"}
    assert ttgir.count("warp_group_dot ") == len(waits)


@pytest.mark.parametrize("name", KERNELS)
def test_float32_is_not_tf32(name):
    """Without autocast the products would lose 13 bits."""
    ptx = stem_convolution(name, half=False, out_channels=16, divisible=()).asm["ptx"]
    assert "tf32" not in ptx
    assert "fma.rn.f32" in ptx


@pytest.mark.parametrize("name", KERNELS)
def test_products_run_on_an_mi300s_matrix_cores(name):
    """Products fall to scalar code there."""
    assert "v_mfma" in stem_convolution(name, MI300).asm["amdgcn"]


@pytest.mark.parametrize("extent", ["D", "H", "W"])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_an_extent_of_one(name, extent):
    """A launch hands the number 1 over as a constant, which has no ``.to``; the interpreter does not."""
    stem_convolution(name, half=False, out_channels=16, divisible=(), **{extent: 1})
