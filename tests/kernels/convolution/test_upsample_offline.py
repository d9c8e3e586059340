"""The step up's kernels as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest
from mutants import mutant
from production_kernels import STEP_UP, upsample, upsample_launch

from scaffold.kernels import resources
from scaffold.kernels.convolution import upsample_plan as plan

pytestmark = kernel_needs.COMPILER

KERNELS = ("forward", "input_gradient", "weight_gradient")
LEVELS = {
    "128 to 64 at 64^3": STEP_UP,
    "1024 to 512 at 8^3": plan.Sizes(1, 512, (8,) * 3, (16,) * 3),
}


def compiled(name, sizes, module=None):
    """Compile a kernel for a level's plan; return it and its number of stages."""
    stages = upsample_launch(name, sizes=sizes).constants["num_stages"]
    return upsample(name, sizes=sizes, module=module), stages


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_use_the_fast_instructions(name, level):
    """A tile would spill, fall off the warpgroup's matrix instruction, or move less than 16 bytes at a time."""
    kernel, _ = compiled(name, LEVELS[level])
    found, ptx = resources.resources(kernel), kernel.asm["ptx"]
    assert found.stack_bytes == 0
    assert found.shared_bytes <= 227 * 1024
    assert "wgmma.mma_async" in ptx
    copies = re.findall(r"cp\.async\.\w+\.shared\.global [^;]*?, (0x\w+|\d+)", ptx)
    assert copies
    assert {int(size, 0) for size in copies} == {16}
    stores = re.findall(r"st\.global\.(v\d)", ptx)
    assert stores.count("v4") >= 8
    assert len(stores) - stores.count("v4") <= 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_operand_is_overwritten_while_a_product_reads_it(name, level):
    """The next tile would arrive in the buffer that a product in flight still reads: wrong bits, now and then."""
    kernel, stages = compiled(name, LEVELS[level])
    assert "warp_group_dot" in kernel.asm["ttgir"]
    assert not overwritten(kernel.asm["ttgir"], stages)


def test_a_second_reader_makes_the_race(tmp_path, monkeypatch):
    """Control: without the wait of ``_finished`` Triton keeps a buffer too few of the operand that is also summed."""
    from scaffold.kernels.convolution import upsample_kernels

    waiting, racing = "acc = _finished(_dot(tl.trans(a), b, acc, UPCAST))", "acc = _dot(tl.trans(a), b, acc, UPCAST)"
    module = mutant(upsample_kernels, waiting, racing, monkeypatch, tmp_path)
    kernel, stages = compiled("weight_gradient", LEVELS["128 to 64 at 64^3"], module)
    if not overwritten(kernel.asm["ttgir"], stages):
        pytest.skip("this Triton counts the second reader; the wait may go when no older one is supported")


def overwritten(ttgir, stages):
    """Whether a product crosses a loop's turn while an operand has fewer buffers than there are stages."""
    loop = ttgir[ttgir.index("scf.for") :]
    waits = re.findall(r"warp_group_dot_wait .*pendings = (\d)", loop[: loop.index("scf.yield")])
    asynchronous = "isAsync = true" in loop[: loop.index("scf.yield")]
    buffers = [int(n) for n in re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x", ttgir)]
    in_flight = asynchronous and (not waits or waits[-1] != "0")
    return in_flight and min(buffers) < stages
