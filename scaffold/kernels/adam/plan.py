"""How the parameters are cut into chunks, one program each: pure functions, importable without Triton or a GPU.

The chunks fix in which order the squares of the gradients are added, hence the bits of the clipped step: they
follow from the tensors' sizes alone, the same on every device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Tile(NamedTuple):
    """Sizes of a launch.

    Attributes:
        chunk: elements a program.
        block: elements it has in flight; divides ``chunk``.
        num_warps: warps a program.
    """

    chunk: int
    block: int
    num_warps: int


TILE = Tile(chunk=8192, block=1024, num_warps=4)
"""As timed on an H200: 8 elements a thread, which fill two 16-byte accesses to each of seven streams."""


class Chunk(NamedTuple):
    """One program's share.

    Attributes:
        tensor: which tensor.
        number: which of its chunks.
    """

    tensor: int
    number: int


def chunks(sizes: Iterable[int], chunk: int) -> list[Chunk]:
    """Return the chunks of tensors of ``sizes`` elements, in order; an empty tensor has none."""
    return [Chunk(tensor, number) for tensor, size in enumerate(sizes) for number in range(-(-size // chunk))]
