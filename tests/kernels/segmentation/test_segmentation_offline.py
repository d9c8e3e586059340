"""The kernels of the loss sums as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest

from scaffold.kernels import resources
from scaffold.kernels.segmentation import plan

pytestmark = kernel_needs.COMPILER

TYPES = {"logits": "*bf16", "gradient": "*bf16", "labels": "*u8", "extent": "i32"}


def compiled(name, classes=6, **changes):
    from scaffold.kernels.segmentation import kernels

    launch = plan.plan(1, classes, 128**3, 132)
    kernel = getattr(kernels, f"{name}_kernel")
    constants = {
        "CLASSES": classes, "WIDTH": launch.width, "LAST": True, "PAIRED": True, "BLOCK": launch.block,
        "TURNS": launch.turns,
    } | changes  # fmt: skip
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    return resources.compile_offline(kernel, constants, TYPES, {"num_warps": launch.num_warps})


@pytest.mark.parametrize("name", ["sums", "gradient"])
def test_production_shape_keeps_to_registers_and_atomics_out(name):
    """The kernel would run from memory, or add in an order that varies."""
    made = compiled(name)
    assert resources.resources(made).stack_bytes == 0
    assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


def test_a_thread_holds_all_classes_of_its_voxels():
    """Each softmax would be passed between threads, several times slower than the memory it reads."""
    assert "shfl" not in compiled("gradient").asm["ptx"]
    assert "shfl" in compiled("sums").asm["ptx"], "control: the final sums over a program's lanes do show"


def test_logits_are_read_in_pairs():
    """Twice as many reads; the control shows what is counted."""
    reads = {
        paired: len(re.findall(r"ld\.global\S*\.b16", compiled("gradient", PAIRED=paired).asm["ptx"]))
        for paired in (0, 1)
    }
    assert reads[0] - reads[1] == 12
