"""The kernels of the pointwise convolution as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest

from scaffold.kernels import resources
from scaffold.kernels.convolution.pointwise_plan import plan

pytestmark = kernel_needs.COMPILER


def compiled(name, dtype="*bf16", **changes):
    from scaffold.kernels.convolution import pointwise_kernels

    made = plan(64, 6, 128**3, 2 if dtype == "*bf16" else 4, 132)
    constants = {
        "C_IN": 64, "C_OUT": 6, "WIDE_IN": made.wide_in, "WIDE_OUT": made.wide_out, "BLOCK": made.block,
        "TURNS": made.turns,
    } | changes  # fmt: skip
    types = dict.fromkeys(("x", "out", "gradient", "dx"), dtype) | {"rows": "i32"}
    options = {"num_warps": made.num_warps, "num_stages": made.num_stages}
    return resources.compile_offline(getattr(pointwise_kernels, f"{name}_kernel"), constants, types, options)


@pytest.mark.parametrize("dtype", ["*bf16", "*fp32"])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_production_shape_keeps_to_registers_and_atomics_out(name, dtype):
    """The kernel would run from memory, or add in an order that varies."""
    made = compiled(name, dtype)
    assert resources.resources(made).stack_bytes == 0
    assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


def test_too_large_a_tile_is_noticed():
    """Control: the register guard would let everything pass."""
    assert resources.resources(compiled("backward", "*fp32", BLOCK=128)).stack_bytes > 0


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_tiles_are_loaded_ahead_and_multiplied_by_tensor_cores(name):
    """A program would wait for each tile, or multiply in scalar instructions."""
    ptx = compiled(name).asm["ptx"]
    assert "cp.async.cg.shared.global" in ptx
    assert re.search(r"wgmma|mma\.sync", ptx)
    assert "cp.async.cg" not in compiled(name, TURNS=1).asm["ptx"], "control: a single turn has nothing to load ahead"


def test_no_product_reads_registers():
    """A product still in flight at the end of a turn would see its operand overwritten by the next.

    Operands in shared memory are safe: a tile's place is used again only after the next turn's first product
    has waited for all before it.
    """
    ttgir = compiled("backward").asm["ttgir"]
    products = [line for line in ttgir.splitlines() if "warp_group_dot " in line]
    assert len(products) == 2
    assert all(re.search(r": !ttg\.memdesc<\S+ #\S+ #smem.*> \* !ttg\.memdesc<", line) for line in products)
    assert "warp_group_dot_wait" in ttgir.split(products[0])[1].splitlines()[1]
