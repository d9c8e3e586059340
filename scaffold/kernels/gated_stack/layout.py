"""Sizes and column layout of the gated mixing stack.

A row holds ``3 L + 1`` coefficients of ``C`` channels; one coefficient is a *subtile* of ``C``
contiguous columns. After the scalar (subtile 0) there are three *stripes* of ``L`` subtiles, each
ordered by degree 1..L: the order m = 0, then m = -1, then m = +1::

    subtile   0      1 .. L     L+1 .. 2L   2L+1 .. 3L
    content   scalar m = 0      m = -1      m = +1
    block     |---- m = 0 ----| |------ |m| = 1 ------|
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StackDims:
    """Sizes of one stack.

    Args:
        n_focus: F, independent copies with weights of their own.
        n_edge: E, rows.
        lmax: L, the highest degree.
        channels: C, channels of a coefficient.
        n_gated: N, gated layers; one ungated layer follows them.

    Raises:
        ValueError: a size is out of range.
    """

    n_focus: int
    n_edge: int
    lmax: int
    channels: int
    n_gated: int

    def __post_init__(self) -> None:
        for name, least in (("n_focus", 1), ("n_edge", 0), ("lmax", 1), ("channels", 1), ("n_gated", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; at least {least} is needed")

    @property
    def gate_width(self) -> int:
        """G = L C, columns of one stripe and of the gates."""
        return self.lmax * self.channels

    @property
    def m0(self) -> int:
        """Columns of the m = 0 block, (L + 1) C."""
        return (self.lmax + 1) * self.channels

    @property
    def m1(self) -> int:
        """Columns of the |m| = 1 block, 2 L C."""
        return 2 * self.gate_width

    @property
    def row(self) -> int:
        """R = (3 L + 1) C, columns of a row."""
        return self.m0 + self.m1

    def gate_of_subtile(self, subtile: int) -> int:
        """Return the gate group, 0..L-1, that scales ``subtile`` (1..3L)."""
        if not 1 <= subtile <= 3 * self.lmax:
            raise ValueError(f"subtile {subtile} has no gate; only 1..{3 * self.lmax} have one")
        return (subtile - 1) % self.lmax

    def k_order(self, block: int) -> list[int]:
        """Return the order in which the backward's kernels add up the subtiles of a block's contraction.

        Floating-point sums depend on their order, so it is part of the contract between the unfused and the
        fused backward: ascending, but the scalar last, because its gradient is complete only when all
        groups have been seen.

        Args:
            block: 0 for m = 0, 1 for |m| = 1.

        Returns:
            Subtile numbers within the block.
        """
        return [*range(1, self.lmax + 1), 0] if block == 0 else list(range(2 * self.lmax))


def dims_of(u0: tuple[int, ...], w0: tuple[int, ...], w1: tuple[int, ...], gw: tuple[int, ...], lmax: int) -> StackDims:
    """Return the sizes that the shapes of a stack's tensors agree on.

    Args:
        u0: shape (F, E, R).
        w0: shape (N + 1, F, M0, M0).
        w1: shape (N + 1, F, M1, M1).
        gw: shape (N, F, C, G).
        lmax: L.

    Raises:
        ValueError: they disagree; the message names the tensor, its shape and the shape needed.
    """
    if len(u0) != 3 or lmax < 1 or u0[2] % (3 * lmax + 1):
        raise ValueError(f"u0 has shape {tuple(u0)}; (F, E, {3 * lmax + 1} C) is needed for lmax = {lmax}")
    if len(w0) != 4 or w0[0] < 1:
        raise ValueError(f"w0 has shape {tuple(w0)}; (N + 1, F, M0, M0) is needed")
    dims = StackDims(u0[0], u0[1], lmax, u0[2] // (3 * lmax + 1), w0[0] - 1)
    layers, focus = dims.n_gated, dims.n_focus
    needed = {
        "w0": (w0, (layers + 1, focus, dims.m0, dims.m0)),
        "w1": (w1, (layers + 1, focus, dims.m1, dims.m1)),
        "gw": (gw, (layers, focus, dims.channels, dims.gate_width)),
    }
    for name, (shape, right) in needed.items():
        if tuple(shape) != right:
            raise ValueError(f"{name} has shape {tuple(shape)}; {right} is needed for u0 of shape {tuple(u0)}")
    return dims
