"""The kernels of Adam as compiled for GPUs, on a machine without one."""

import re

import kernel_needs
import mi300
import pytest

from scaffold.kernels import resources
from scaffold.kernels.adam import plan

pytestmark = kernel_needs.COMPILER

TABLE = {"addresses": "*i64", "sizes": "*i64", "chunk_tensor": "*i32", "chunk_number": "*i32", "rate": "*fp64"}
CHUNKED = {"N_TENSORS": 64, "CHUNK": plan.TILE.chunk, "BLOCK": plan.TILE.block}
CONSTANTS = {
    "norm_kernel": CHUNKED,
    "scalars_kernel": {
        "MAX_NORM": 1.0, "LOG_BETA1": -0.1, "LOG_BETA2": -1e-3, "N_CHUNKS": 5531, "N_TENSORS": 64, "BLOCK": 4096,
        "TENSORS": 64,
    },
    "update_kernel": CHUNKED | {"BETA1": 0.9, "BETA2": 0.999, "EPS": 1e-8},
}  # fmt: skip


def compiled(name, **more):
    from scaffold.kernels.adam import kernels

    constants = CONSTANTS[name] | more
    return resources.compile_offline(getattr(kernels, name), constants, TABLE, {"num_warps": plan.TILE.num_warps})


@pytest.mark.parametrize("name", CONSTANTS)
def test_no_register_spills(name):
    """Spilled, a kernel that only moves memory moves more of it."""
    aligned = {} if name == "scalars_kernel" else {"ALIGNED": True}
    assert resources.resources(compiled(name, **aligned)).stack_bytes == 0


@pytest.mark.parametrize(("name", "loads", "stores"), [("norm_kernel", 1, 0), ("update_kernel", 4, 3)])
def test_whole_chunks_move_16_bytes_at_a_time(name, loads, stores):
    """An address from a table tells the compiler nothing of its alignment; single words halve the bandwidth."""
    turns = plan.TILE.block // (32 * plan.TILE.num_warps * 4)
    found = wide(compiled(name, ALIGNED=True))
    # The compiler may have unrolled the loop, all streams equally often.
    assert found[0] >= loads * turns
    assert found[0] * stores == found[1] * loads
    assert wide(compiled(name, ALIGNED=False)) == (0, 0), "control: that is what alignment is promised for"


@pytest.mark.parametrize("name", CONSTANTS)
def test_kernels_compile_for_amd_without_spills(name):
    """The benchmark runs on MI300 as well; float64's exponential is the doubtful one."""
    from scaffold.kernels.adam import kernels

    kernel = getattr(kernels, name)
    constants = CONSTANTS[name] | ({} if name == "scalars_kernel" else {"ALIGNED": True})
    assert mi300.spilled_registers(mi300.assembly(kernel, constants, TABLE, {"num_warps": 4})) == 0


def wide(kernel):
    ptx = kernel.asm["ptx"]
    return len(re.findall(r"ld\.global[.\w:]*\.v4", ptx)), len(re.findall(r"st\.global[.\w:]*\.v4", ptx))
