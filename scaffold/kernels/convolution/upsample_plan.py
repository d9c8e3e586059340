"""Sizes and launch plans of the step up: pure functions, importable without Triton or a GPU.

A plan follows from shapes and the device's number of multiprocessors, never from timing: how a sum is split
decides its bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

WIDE_FROM = 2**31
"""Elements from which offsets take 64 bits."""

_MOST_INPUT_SPLITS = 8


class Sizes(NamedTuple):
    """Sizes of one call."""

    batch: int
    channels: int
    """C: of the skip and of the upsampled half; the coarse tensor has 2 C."""
    coarse: tuple[int, int, int]
    """(d, h, w)."""
    fine: tuple[int, int, int]
    """(D, H, W), each twice the coarse extent, or one more."""

    @property
    def voxels(self) -> int:
        """Coarse voxels of the batch."""
        return self.batch * prod(self.coarse)

    @property
    def cells(self) -> int:
        """Cells of 2^3 fine voxels that cover the fine extents, of the batch."""
        return self.batch * prod((extent + 1) // 2 for extent in self.fine)


class Strides(NamedTuple):
    """Element strides of a tensor whose channels have stride 1."""

    batch: int
    depth: int
    height: int
    width: int


@dataclass(frozen=True)
class Tile:
    """Launch choice of one kernel: a program's tile, its step along the sum, warps, stages, shares of the sum."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 8
    num_stages: int = 3
    splits: int = 1


class Launch(NamedTuple):
    """What is launched, besides the tensors and the number of rows."""

    kernel: str
    """Name in ``upsample_kernels``, without ``_kernel``."""
    grid: tuple[int, int]
    constants: dict[str, Any]
    """Compile-time arguments, and the compiler's options."""


def dense_strides(channels: int, extents: tuple[int, int, int]) -> Strides:
    """Return the strides of a dense channels-last tensor."""
    D, H, W = extents
    return Strides(D * H * W * channels, H * W * channels, W * channels, channels)


@lru_cache(maxsize=256)
def forward_tile(sizes: Sizes, itemsize: int) -> Tile:
    """Plan the forward GEMM: (voxels, 2 C) by (2 C, 8 C)."""
    C = sizes.channels
    tile = _tile(sizes.cells, 8 * C, 2 * C, itemsize)
    # Short sums are limited by memory: programs of half the size, three a multiprocessor, keep more bytes in flight.
    short = 2 * C <= 256 and tile.block_m == 128
    return Tile(64, tile.block_n, tile.block_k, 4, tile.num_stages) if short else tile


@lru_cache(maxsize=256)
def input_gradient_tile(sizes: Sizes, itemsize: int, multiprocessors: int) -> Tile:
    """Plan dx: (voxels, 8 C) by (8 C, 2 C), with a split sum where tiles alone leave multiprocessors idle."""
    C = sizes.channels
    tile = _tile(sizes.voxels, 2 * C, 8 * C, itemsize)
    programs = _ceil(sizes.voxels, tile.block_m) * (2 * C // tile.block_n)
    splits = 1
    while splits < _MOST_INPUT_SPLITS and splits * programs <= multiprocessors and _divides(2 * splits, 8 * C, tile):
        splits *= 2
    return Tile(tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.num_stages, splits)


@lru_cache(maxsize=256)
def weight_gradient_tile(sizes: Sizes, itemsize: int, multiprocessors: int) -> Tile:
    """Plan dW: (2 C, voxels) by (voxels, 8 C), split over the voxels into about two programs a multiprocessor."""
    C = sizes.channels
    block_m, block_n, block_k = (128, 128, 64) if itemsize == 2 else (64, 64, 32)
    block_m, block_n = gcd(block_m, 2 * C), gcd(block_n, 8 * C)
    programs = (2 * C // block_m) * (8 * C // block_n)
    splits = max(1, min(2 * multiprocessors // programs, _ceil(sizes.voxels, block_k) // 4))
    warps, stages = (8, 3) if block_m == 128 else (4, 2)
    return Tile(block_m, block_n, block_k, warps, stages, splits)


def forward_launch(sizes: Sizes, x: Strides, skip: Strides, tile: Tile, *, copy_skip: bool, wide: bool) -> Launch:
    """Return the launch of ``forward_kernel``."""
    constants = _common(sizes, tile, wide) | _named("X", x) | _named("S", skip) | {"COPY_SKIP": copy_skip}
    constants |= dict(zip("DHW", sizes.fine, strict=True))
    return Launch("forward", (_ceil(sizes.cells, tile.block_m) * (8 * sizes.channels // tile.block_n), 1), constants)


def input_gradient_launch(sizes: Sizes, grad: Strides, tile: Tile, *, wide: bool) -> Launch:
    """Return the launch of ``input_gradient_kernel``."""
    programs = _ceil(sizes.voxels, tile.block_m) * (2 * sizes.channels // tile.block_n)
    constants = _common(sizes, tile, wide) | _named("G", grad) | {"SPLITS": tile.splits}
    return Launch("input_gradient", (programs, tile.splits), constants)


def weight_gradient_launch(sizes: Sizes, x: Strides, grad: Strides, tile: Tile, *, wide: bool) -> Launch:
    """Return the launch of ``weight_gradient_kernel``."""
    C = sizes.channels
    programs = (2 * C // tile.block_m) * (8 * C // tile.block_n)
    steps = _ceil(_ceil(sizes.voxels, tile.block_k), tile.splits)
    constants = _common(sizes, tile, wide) | _named("X", x) | _named("G", grad)
    return Launch(
        "weight_gradient", (programs, tile.splits), constants | {"STEPS": steps, "SPLITS": tile.splits}
    )  # fmt: skip


def sum_shares_launch(shares: int, size: int) -> Launch:
    """Return the launch of ``sum_shares_kernel``: many rows at once where there are few columns."""
    rows, block = (8, 256) if size >= 4096 else (64, 32)
    constants = {
        "N_SHARES": shares, "WIDE": shares * size >= WIDE_FROM, "ROWS": rows, "BLOCK": block,
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    return Launch("sum_shares", (_ceil(size, block), 1), constants)


def _tile(rows: int, columns: int, inner: int, itemsize: int) -> Tile:
    """Return the tile of a GEMM; blocks along ``columns`` and ``inner`` divide them."""
    if itemsize == 4:
        # Plain multiply-adds from registers: a tensor-core tile would spill.
        return Tile(gcd(64, _power(rows)), gcd(64, columns), gcd(32, inner), 4, 2)
    block_m = min(128, max(16, _power(rows)))
    return Tile(block_m, gcd(128, columns), gcd(64, inner), 8 if block_m == 128 else 4, 3)


def _divides(splits: int, inner: int, tile: Tile) -> bool:
    return inner % (splits * tile.block_k) == 0


def _power(n: int) -> int:
    return 1 << max(n - 1, 15).bit_length()


def _common(sizes: Sizes, tile: Tile, wide: bool) -> dict[str, Any]:
    extents = dict(zip("dhw", sizes.coarse, strict=True))
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return {"C": sizes.channels, "WIDE": wide, **extents, **blocks, **options}


def _named(prefix: str, strides: Strides) -> dict[str, int]:
    return dict(zip((f"{prefix}_{axis}" for axis in "NDHW"), strides, strict=True))


def _ceil(n: int, block: int) -> int:
    return -(-n // block)
