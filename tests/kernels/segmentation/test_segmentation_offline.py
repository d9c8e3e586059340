"""The kernels of the loss sums as compiled for a Hopper GPU, on a machine without one."""

import re

import kernel_needs
import pytest
from production_kernels import segmentation

pytestmark = kernel_needs.COMPILER


@pytest.mark.parametrize("name", ["sums", "gradient"])
def test_there_are_no_atomics(name):
    """The kernel would add in an order that varies."""
    assert not re.search(r"\b(atom|red)\.", segmentation(name).asm["ptx"])


def test_a_thread_holds_all_classes_of_its_voxels():
    """Each softmax would be passed between threads, several times slower than the memory it reads."""
    assert "shfl" not in segmentation("gradient").asm["ptx"]
    assert "shfl" in segmentation("sums").asm["ptx"], "control: the final sums over a program's lanes do show"


def test_logits_are_read_in_pairs():
    """Twice as many reads; the control shows what is counted."""
    reads = {
        paired: len(re.findall(r"ld\.global\S*\.b16", segmentation("gradient", PAIRED=paired).asm["ptx"]))
        for paired in (0, 1)
    }
    assert reads[0] - reads[1] == 12
