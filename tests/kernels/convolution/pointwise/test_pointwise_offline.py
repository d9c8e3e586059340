"""The kernels of the pointwise convolution as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest
from production_kernels import pointwise

from scaffold.kernels import resources

pytestmark = kernel_needs.COMPILER


@pytest.mark.parametrize("dtype", ["*bf16", "*fp32"])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_production_shape_keeps_to_registers_and_atomics_out(name, dtype):
    """The kernel would run from memory, or add in an order that varies."""
    made = pointwise(name, dtype=dtype)
    assert resources.resources(made).stack_bytes == 0
    assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_tiles_are_loaded_ahead_and_multiplied_by_tensor_cores(name):
    """A program would wait for each tile, or multiply in scalar instructions."""
    ptx = pointwise(name).asm["ptx"]
    assert "cp.async.cg.shared.global" in ptx
    assert re.search(r"wgmma|mma\.sync", ptx)
    assert "cp.async.cg" not in pointwise(name, TURNS=1).asm["ptx"], "control: a single turn has nothing to load ahead"


def test_no_product_reads_registers():
    """A product still in flight at the end of a turn would see its operand overwritten by the next.

    Operands in shared memory are safe: a tile's place is used again only after the next turn's first product
    has waited for all before it.
    """
    ttgir = pointwise("backward").asm["ttgir"]
    products = [line for line in ttgir.splitlines() if "warp_group_dot " in line]
    assert len(products) == 2
    assert all(re.search(r": !ttg\.memdesc<\S+ #\S+ #smem.*> \* !ttg\.memdesc<", line) for line in products)
    assert "warp_group_dot_wait" in ttgir.split(products[0])[1].splitlines()[1]
