"""The ``.npy`` files of clouds and of data sets: their exact bytes, and reading and writing ranges of them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 4096
"""Header of each file, padded to a page: so the planes of volumes of edge 64 and more begin at page
boundaries, as direct I/O and stripes of parallel file systems like it. NumPy reads it as any other."""


@dataclass(frozen=True)
class ArrayFile:
    """One C-ordered ``.npy`` file whose first axis counts items: samples, or clouds.

    The header is written here and not by NumPy, whose padding differs between versions: the bytes of
    a file depend on its settings alone.

    Attributes:
        path: the file.
        shape: (items, ...).
        dtype: little-endian, e.g. ``<f4``.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def header(self) -> bytes:
        """The file's first 4096 bytes (NumPy's format version 1.0)."""
        text = repr({"descr": self.dtype, "fortran_order": False, "shape": self.shape})
        prefix = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        return prefix + text.encode("latin1").ljust(HEADER_BYTES - 11) + b"\n"

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return HEADER_BYTES + self.shape[0] * self.item_bytes

    def offset(self, *index: int) -> int:
        """Return the file offset of the element (or first element of the sub-array) at ``index``."""
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(index))]
        elements = sum(i * stride for i, stride in zip(index, strides, strict=True))
        return HEADER_BYTES + elements * np.dtype(self.dtype).itemsize

    def size_problem(self) -> str | None:
        """Return what a look at the file's directory entry says is wrong with it, or None."""
        try:
            found = self.path.stat().st_size
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if found < self.size:
            return f"is truncated: {found} of {self.size} bytes"
        if found > self.size:
            return f"has {found} bytes instead of {self.size}"
        return None

    def header_problem(self) -> str | None:
        """Return what is wrong with the size or the header of the file, or None."""
        problem = self.size_problem()
        if problem is not None:
            return problem
        try:
            with open(self.path, "rb") as file:
                header = file.read(HEADER_BYTES)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if header != self.header:
            return f"does not begin with the header of a {self.dtype} array of shape {self.shape}"
        return None


def read_into(descriptor: int, buffer: NDArray[np.generic], offset: int) -> int:
    """Fill the contiguous ``buffer`` from ``offset`` of a file; return the bytes read, fewer at its end."""
    view = buffer.data.cast("B")
    done = 0
    # One call returns at most 2 GiB on Linux.
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_at(descriptor: int, content: NDArray[np.generic], offset: int) -> None:
    """Write the contiguous array ``content`` at ``offset`` of a file."""
    view = content.data.cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
