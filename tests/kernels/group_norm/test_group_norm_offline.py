"""The kernels as compiled for a Hopper GPU, on a machine without one."""

import re
from typing import get_args

import kernel_needs
import pytest

from scaffold.kernels import resources
from scaffold.kernels.group_norm import offline, plan
from scaffold.kernels.group_norm.plan import Problem

pytestmark = kernel_needs.COMPILER


PROBLEMS = [Problem(64, 8, 256, 256, 256, 1, 2, False), Problem(64, 8, 256, 256, 256, 1, 2, True),
            Problem(256, 8, 64, 64, 64, 1, 2, False)]  # fmt: skip


@pytest.mark.parametrize("kernel", get_args(plan.Pass))
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_threads_own_their_channels(kernel, problem):
    """Sums would leave the thread in every tile: with the wrong order of axes they took 255 registers and spilled."""
    found = resources.resources(offline.compile_pass(kernel, problem))
    assert found.stack_bytes == 0
    assert found.registers <= (176 if problem.pooled else 128)
    # Room for 8 warps to exchange sums after the last tile, but not for a tile.
    assert found.shared_bytes <= 2048


def test_wide_tile_needs_more_registers_than_there_are():
    """Control: the register guard would let everything pass."""
    compiled = offline.compile_pass("statistics", PROBLEMS[0], choice=plan.Choice(64, 32, 4, 4))
    assert resources.resources(compiled).registers == 255


@pytest.mark.parametrize("kernel", get_args(plan.Pass))
@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=str)
def test_tensors_move_in_whole_vectors(kernel, problem):
    """Narrow accesses: bfloat16 one by one takes eight times the instructions, and the bandwidth is gone."""
    ptx = offline.compile_pass(kernel, problem).asm["ptx"]
    assert re.search(r"ld\.global[\w.:]*\.v4\.b32", ptx)
    narrow = re.findall(r"(?:ld|st)\.global[\w.:]*\.b(?:8|16)\b", ptx)
    # The pivots of the statistics' groups.
    assert len(narrow) <= (2 if kernel == "statistics" else 0), narrow
    assert not re.search(r"\b(?:atom|red)\.", ptx)
