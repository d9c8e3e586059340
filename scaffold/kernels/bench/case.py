"""What a workload is made of: its cases, and the ways to compute each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

Sizes = Literal["full", "small"]
"""``full``: the sizes that figures are quoted for; ``small``: seconds, to see that everything runs."""

Result = Tensor | tuple[Tensor, ...]

Arithmetic = Literal["float32", "bfloat16"]
"""``float32``: of the general cores; ``bfloat16``: matrix products, summed in float32."""


class Cost(NamedTuple):
    """Work of one repetition."""

    bytes: float
    """Moved to and from device memory."""
    flops: float


@dataclass(frozen=True)
class Arm:
    """One way to compute a case."""

    name: str
    run: Callable[[], Result]
    """One repetition; returns its result. It must not wait for the device."""
    precision: str = "ieee"
    cost: Cost | None = None
    """What the arm is modelled to move and compute."""
    footprint: Callable[[], object] | None = None
    """The same work with its own allocations, to measure them."""
    registers: Callable[[], str] | None = None
    """Tells registers and spilled bytes of its kernels."""
    compiles: bool = False
    """Whether its first run compiles, which is then done ahead, for many cases at once."""
    check: Callable[[], Result] | None = None
    """One repetition from the state that ``error`` knows, for an arm that changes its operands."""


@dataclass(frozen=True)
class Case:
    """One problem size."""

    name: str
    minimum: Cost
    arms: list[Arm]
    error: Callable[[Any], float]
    """Root mean square error of a result (of its worst tensor) relative to float64, perhaps of a part of it."""
    base: str
    """The arm that the others are divided by."""
    arithmetic: Arithmetic = "float32"
    """Which arithmetic rate the minimum is held against."""
    graph: bool = False
    """Whether to time short runs by a CUDA graph; its arms must have no state on the host."""


Recipe = Callable[[], Case]
"""Makes a case; its tensors live as long as the case."""
