"""The kernels as compiled for a Hopper GPU, on a machine without one."""

import kernel_needs
import pytest

from scaffold.kernels.gated_stack import offline
from scaffold.kernels.gated_stack.layout import StackDims

pytestmark = kernel_needs.COMPILER

DIMS = StackDims(2, 1000, 3, 32, 1)


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
