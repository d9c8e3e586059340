"""The kernels of Adam as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest
from production_kernels import adam

from scaffold.kernels.adam import plan

pytestmark = kernel_needs.COMPILER


@pytest.mark.parametrize(("name", "loads", "stores"), [("norm", 1, 0), ("update", 4, 3)])
def test_whole_chunks_move_16_bytes_at_a_time(name, loads, stores):
    """An address from a table tells the compiler nothing of its alignment; single words halve the bandwidth."""
    turns = plan.TILE.block // (32 * plan.TILE.num_warps * 4)
    found = wide(adam(name))
    # The compiler may have unrolled the loop, all streams equally often.
    assert found[0] >= loads * turns
    assert found[0] * stores == found[1] * loads
    assert wide(adam(name, ALIGNED=False)) == (0, 0), "control: that is what alignment is promised for"


def wide(kernel):
    ptx = kernel.asm["ptx"]
    return len(re.findall(r"ld\.global[.\w:]*\.v4", ptx)), len(re.findall(r"st\.global[.\w:]*\.v4", ptx))
