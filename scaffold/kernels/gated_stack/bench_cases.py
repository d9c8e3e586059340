"""What the two workloads of the gated stack share: sizes, random layers, stock arms, error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from scaffold.kernels.bench import Arm, Sizes
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Precision

SIZES: dict[Sizes, list[tuple[int, int, int, int]]] = {
    "full": [
        (lmax, channels, focus, edges)
        for lmax, channels, focus in ((3, 32, 2), (1, 32, 2), (6, 32, 1), (3, 16, 2))
        for edges in (646_000, 200_000)
    ],
    "small": [(2, 16, 2, 2_000)],
}
"""L, C, F, E. A surface of the smallest full case is 85 MB, more than the L2 cache of any GPU so far."""

_CHECKED_ROWS = 4096


class Layer:
    """Random input rows and weights of one gated layer.

    Args:
        dims: the sizes.
        device: where.
    """

    def __init__(self, dims: StackDims, device: torch.device) -> None:
        torch.manual_seed(dims.lmax)
        self.dims = dims
        self.name = f"L{dims.lmax} C{dims.channels} F{dims.n_focus} E{dims.n_edge}"
        self.rows = torch.randn((dims.n_focus, dims.n_edge, dims.row), device=device)
        self.weights = tuple(
            torch.randn((dims.n_focus, rows, columns), device=device) / rows**0.5
            for rows, columns in ((dims.m0, dims.m0), (dims.m1, dims.m1), (dims.channels, dims.gate_width))
        )
        self.checked = min(dims.n_edge, _CHECKED_ROWS)


def compiled_arms(
    function: Callable[..., Any], operands: tuple[Tensor, ...], result: Callable[[Any], Tensor] = lambda x: x
) -> list[Arm]:
    """Return ``torch.compile`` of the reference, in float32 and with single-pass tf32 products."""
    torch._dynamo.reset()
    plain, coarse = torch.compile(function, dynamic=False), torch.compile(lambda *x: function(*x), dynamic=False)

    def with_tf32() -> Tensor:
        with _matmul_precision("high"):
            return result(coarse(*operands))

    return [
        Arm("compile", lambda: result(plain(*operands)), compiles=True),
        Arm("compile-tf32", with_tf32, "tf32", compiles=True),
    ]


def rms_error(found: Tensor, exact: Tensor) -> float:
    """Root mean square error over the rows of ``exact``, relative to its root mean square."""
    difference = found[:, : exact.shape[1]].double() - exact
    return cast(float, (difference.square().mean() / exact.square().mean()).sqrt().item())


def spills(path: str, dims: StackDims, precision: Precision) -> str:
    """Registers and spilled bytes of a path's kernels on the present GPU; empty where they cannot be read."""
    from scaffold.kernels.gated_stack import offline

    major, minor = torch.cuda.get_device_capability()
    with contextlib.suppress(RuntimeError):
        return offline.describe_layer(path, dims, precision, 10 * major + minor)
    return ""


@contextlib.contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
