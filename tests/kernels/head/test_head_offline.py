"""The kernels of the fused head as compiled for a Hopper GPU and for an MI300, on a machine without either."""

import re
from typing import get_args

import kernel_needs
import production_kernels
import pytest

from scaffold.kernels import resources
from scaffold.kernels.head import plan

pytestmark = kernel_needs.COMPILER

SITES = {
    "scale 8": {"voxels": 256**3},
    "wide": {"channels": 128, "classes": 32, "voxels": 256**3},
}

compiled = production_kernels.head


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("name", get_args(plan.Pass))
def test_no_register_spills_and_no_atomics(name, site, itemsize):
    """A tile would run from memory, or sums be added in an order that varies."""
    made = compiled(name, itemsize=itemsize, **SITES[site])
    assert resources.resources(made).stack_bytes == 0
    assert not re.search(r"\b(?:atom|red)\.", made.asm["ptx"])
    assert "tf32" not in made.asm["ptx"]


def test_too_large_a_tile_is_noticed():
    """Control: the register guard would let everything pass."""
    assert resources.resources(compiled("gradient_sums", itemsize=4, BLOCK=256)).stack_bytes > 0


@pytest.mark.parametrize("name", get_args(plan.Pass))
def test_tiles_are_loaded_ahead_in_whole_vectors_and_multiplied_by_tensor_cores(name):
    """A program would wait for each tile, read it piece by piece, or multiply in scalar instructions."""
    ptx = compiled(name).asm["ptx"]
    assert re.search(r"cp\.async\.cg\.shared\.global.*, 0x10", ptx)
    assert re.search(r"wgmma|mma\.sync", ptx)
    assert "cp.async" not in compiled(name, STAGES=1).asm["ptx"], "control"
    if name == "input_gradient":
        assert "st.global.v4.b32" in ptx


@pytest.mark.parametrize("name", get_args(plan.Pass))
def test_no_product_is_left_in_flight(name):
    """One that still runs when the next turn begins would see its operand in registers overwritten."""
    ttgir = compiled(name).asm["ttgir"]
    products, waits = ttgir.count("warp_group_dot "), re.findall(r"warp_group_dot_wait .*pendings = (\d+)", ttgir)
    assert waits == ["0"] * products
    # The sums' products take operands that were computed, and would not be waited for: they are synchronous.
    assert products == (0 if name == "gradient_sums" else 1)


@pytest.mark.parametrize("name", get_args(plan.Pass))
def test_an_mi300_multiplies_by_matrix_cores(name):
    """In scalar instructions the products would take longer than the memory."""
    assert "v_mfma" in compiled(name, production_kernels.MI300).asm["amdgcn"]
