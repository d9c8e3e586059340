"""The kernels as compiled for a Hopper GPU, on a machine without one."""

import kernel_needs
import pytest

from scaffold.kernels import resources
from scaffold.kernels.gated_stack import offline, plan
from scaffold.kernels.gated_stack.layout import StackDims

pytestmark = kernel_needs.COMPILER

DIMS = StackDims(2, 1000, 3, 32, 1)
MOST_STACK = 64
"""Bytes a thread: a few values beside 255 registers, which differ by Triton's version (0 to 56 from 3.6 to 3.9). A
tile that does not fit spills hundreds."""


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize("path", ["relay", "panel"])
def test_no_register_spills(path, precision):
    """A tile would be tuned beyond the registers of a thread, and run from memory."""
    for name, compiled in offline.compile_layer(path, DIMS, precision).items():
        found = resources.resources(compiled)
        assert found.stack_bytes <= MOST_STACK, (name, found)


def test_wide_panel_needs_more_registers_than_there_are(monkeypatch):
    """Control: the register guard would let everything pass."""
    real = plan.tile_for
    monkeypatch.setattr(
        "scaffold.kernels.gated_stack.driver.tile_for", lambda *a: plan.Tile(64, 128, real(*a).num_warps, 2)
    )
    (scalar, _) = offline.compile_layer("panel", DIMS, "ieee").values()
    assert resources.resources(scalar).stack_bytes > MOST_STACK


def test_compiler_contracts_nothing(monkeypatch):
    """The compiler would turn ``g p - high(g p)`` into one operation, which the relay's rounded ``g p`` cannot be."""
    _, vector = offline.compile_layer("panel", DIMS, "tf32x3").values()
    assert "fma.rn.f32" not in vector.asm["ptx"]
    # Control: left to itself, it does.
    real = offline.Launcher.specify

    def fusing(self, name, **constants):
        kernel, grid, everything = real(self, name, **constants)
        return kernel, grid, everything | {"enable_fp_fusion": True}

    monkeypatch.setattr(offline.Launcher, "specify", fusing)
    _, vector = offline.compile_layer("panel", DIMS, "tf32x3").values()
    assert "fma.rn.f32" in vector.asm["ptx"]


@pytest.mark.parametrize("path", ["relay", "fused", "panel", "forward"])
def test_no_product_is_in_flight_when_its_operand_is_overwritten(path):
    """A loop would end with a tensor-core product in flight that reads registers the next turn overwrites.

    Such a race, in a relay whose products accumulated directly, gave 512 wrong elements in 1 of 8 runs over
    646 000 rows on an H200.
    """
    for name, compiled in offline.compile_layer(path, DIMS, "tf32x3").items():
        assert "warp_group_dot" in compiled.asm["ttgir"], name
        assert not races(compiled.asm["ttgir"]), name


def test_a_racing_loop_is_noticed():
    """Control: the scan would overlook a product that nothing waits for."""
    body = "scf.for {}\n%a = ttng.warp_group_dot %r, %s, %c {{isAsync = true}}\n{}scf.yield %a\n"
    assert races(body.format("", ""))
    assert not races(body.format("", "%b = ttng.warp_group_dot_wait %a {pendings = 0 : i32}\n"))


def races(ttgir):
    """Lines that end a loop turn with an unawaited product."""
    pending, found = False, []
    for line in ttgir.splitlines():
        if "warp_group_dot_wait" in line:
            pending = "pendings = 0" not in line
        elif "warp_group_dot " in line:
            pending = "isAsync = true" in line
        elif "scf.yield" in line and pending:
            found.append(line)
    return found
