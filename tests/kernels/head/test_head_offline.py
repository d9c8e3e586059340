"""The kernels of the fused head as compiled for a Hopper GPU and for an MI300, on a machine without either."""

import re
from typing import get_args

import kernel_needs
import mi300
import pytest

from scaffold.kernels import resources
from scaffold.kernels.group_norm.plan import Device, merging, summing
from scaffold.kernels.head import plan

pytestmark = kernel_needs.COMPILER

H200 = Device(132, 32, tuned=True)
SITES = {"scale 7": (64, 6, 128**3), "scale 8": (64, 6, 256**3), "wide": (128, 32, 256**3)}
"""Channels, classes and voxels."""


def specify(name, site="scale 7", itemsize=2, **changes):
    """Return kernel, constants, types and options of a launch."""
    from scaffold.kernels.head import kernels

    channels, classes, voxels = SITES[site]
    launch = plan.plan(name, plan.Problem(channels, 8, classes, voxels, 1, itemsize), H200)
    kernel = getattr(kernels, f"{name}_kernel")
    rows, _ = summing(264, 2 * channels + classes * (channels + 1))
    constants = dict(launch.constants) | merging(264, launch)
    constants |= {"ROWS": rows["CHANNEL_PARTS"], "COLUMNS": rows["COLUMNS"]} | changes
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = dict.fromkeys(("x", "logits", "dlogits", "dx"), "*bf16" if itemsize == 2 else "*fp32")
    return kernel, constants, types | {"samples": "i32", "eps": "fp32"}, {"num_warps": launch.warps}


def compiled(*arguments, **changes):
    return resources.compile_offline(*specify(*arguments, **changes))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("name", get_args(plan.Pass))
def test_no_register_spills_and_no_atomics(name, site, itemsize):
    """A tile would run from memory, or sums be added in an order that varies."""
    made = compiled(name, site, itemsize)
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
def test_compiles_for_an_mi300(name):
    """The kernels would use what only one vendor's compiler has."""
    assembly = mi300.assembly(*specify(name))
    assert "v_mfma" in assembly
    assert mi300.spilled_registers(assembly) == 0
