"""The stem's kernels as compiled for a Hopper GPU and for an MI300, on a machine without either."""

import re

import kernel_needs
import mi300
import pytest

from scaffold.kernels.convolution import stem_plan
from scaffold.kernels.resources import compile_offline, resources

pytestmark = kernel_needs.COMPILER

INTEGERS = dict.fromkeys(("D", "H", "W", "s_co", "s_ci", "s_d", "s_h", "s_w", "strips"), "i32")
KERNELS = ("forward_kernel", "weight_gradient_kernel")
MOST_STACK = 32
"""Bytes a thread: the forward tile that is fastest on an H200 keeps 24 there (16 with Triton 3.9), so that a third
program runs at once. A tile that does not fit spills hundreds."""


def specify(name, *, channels=3, out_channels=64, half=True, **changes):
    """Return kernel, constants, types and options of a launch at 128^3 on 132 multiprocessors."""
    import triton.language as tl

    from scaffold.kernels.convolution import stem_kernels

    plan = stem_plan.forward_launch if name == "forward_kernel" else stem_plan.weight_gradient_launch
    launch = plan(128, 128, 128, channels, out_channels, half, 132)
    constants = {
        "C": channels, "CO": out_channels, "PAIRS": launch.pairs, "K_TILE": launch.tile.k_tile,
        "K_TILES": launch.k_tiles, "TURNS": launch.turns, "DTYPE": tl.bfloat16 if half else tl.float32,
    }  # fmt: skip
    products = "*bf16" if half else "*fp32"
    types = INTEGERS | {"y": products, "dy": products}
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.tile.num_stages,
    }
    return getattr(stem_kernels, name), constants | changes, types, options


@pytest.fixture(scope="module")
def compiled():
    """{kernel: the compiled form that scales 7 and 8 launch}."""
    return {name: compile_offline(*specify(name), divisible=("D", "H", "W")) for name in KERNELS}


@pytest.mark.parametrize("name", KERNELS)
def test_no_register_spills(name, compiled):
    """A tile would be tuned beyond the registers of a thread, and run from memory."""
    assert resources(compiled[name]).stack_bytes <= MOST_STACK
    for half in (True, False):
        wide = compile_offline(*specify(name, out_channels=128, half=half), divisible=("D", "H", "W"))
        assert resources(wide).stack_bytes == 0


def test_larger_tile_needs_more_registers_than_there_are():
    """Control: the guard above would let everything pass."""
    spilling = compile_offline(*specify("forward_kernel", PAIRS=128, CO=128), divisible=("D", "H", "W"))
    assert resources(spilling).stack_bytes > MOST_STACK


def test_image_is_loaded_two_values_at_a_time(compiled):
    """Windows would start at odd offsets, and take twice as many loads, which the forward pass is bound by."""
    pairs, windows_of_16, threads = 64, 8, 128
    loads = pairs * windows_of_16 * 16 // (threads * 2)
    assert pair_loads(compiled["forward_kernel"]) == loads
    # Control: a width that is no multiple of 2 must not be loaded so.
    odd = compile_offline(*specify("forward_kernel"), divisible=("D", "H"))
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
    ptx = compile_offline(*specify(name, half=False, out_channels=16)).asm["ptx"]
    assert "tf32" not in ptx
    assert "fma.rn.f32" in ptx


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_an_mi300(name):
    """The kernels would use what only one vendor's compiler has."""
    assembly = mi300.assembly(*specify(name))
    assert "v_mfma" in assembly
    assert mi300.spilled_registers(assembly) == 0


@pytest.mark.parametrize("extent", ["D", "H", "W"])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_an_extent_of_one(name, extent):
    """A launch hands the number 1 over as a constant, which has no ``.to``; the interpreter does not."""
    compile_offline(*specify(name, half=False, out_channels=16, **{extent: 1}))
