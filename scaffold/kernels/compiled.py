"""An operation's formula, compiled by ``torch.compile``: the rung between a kernel and the plain formula."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaffold.kernels.ladder import KernelError, is_device_fault, is_out_of_memory, remedy
from scaffold.kernels.refusals import not_plain

_T = TypeVar("_T")

RECOMPILE_LIMIT = 64
"""Compiled forms of a formula: a network has several shapes, each with and without gradients. Dynamo allows 8."""

_COMPILE_TAKES_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters


def compiled(op: str, formula: Callable[..., _T]) -> Callable[..., _T]:
    """Return ``formula`` compiled, for each combination of shapes and dtypes when it first occurs.

    Nothing is compiled or imported before the first call. The compiler's own failures, in the code of the
    backward pass too, become ``KernelError`` in the forward pass; what the compiled code raises passes.

    Args:
        op: name of the operation, for messages.
        formula: traceable without a graph break.
    """

    @functools.cache
    def build() -> Callable[..., _T]:
        # Inductor may else choose by timing between forms that add in different orders.
        options: dict[str, Any] = {"deterministic": True}
        limit: dict[str, Any] = {"recompile_limit": _limit()} if _COMPILE_TAKES_LIMIT else {}
        form: Callable[..., _T] = torch.compile(formula, fullgraph=True, dynamic=False, options=options, **limit)
        return form

    def call(*arguments: Any, **keywords: Any) -> _T:
        try:
            with _whole(), nullcontext() if _COMPILE_TAKES_LIMIT else _raised_limit():
                return build()(*arguments, **keywords)
        except _compiler_failures() as error:
            if is_out_of_memory(error) or is_device_fault(error):
                raise
            raise KernelError(f"{op} could not be compiled: {type(error).__name__}: {error}{remedy(op)}") from error

    return call


def declines(*tensors: Tensor) -> str | None:
    """Return why a compiled formula cannot serve a call with ``tensors``, or None."""
    if torch.compiler.is_compiling():
        return "the region around it is being compiled as a whole"
    return not_plain(*tensors)


def hesitates(*tensors: Tensor) -> str | None:
    """Return why a compiled formula does not pay for ``tensors``, or None."""
    return None if all(tensor.is_cuda for tensor in tensors) else "compiling does not pay on a CPU"


def _limit() -> int:
    import torch._dynamo

    return max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)


def _raised_limit() -> AbstractContextManager[None]:
    """Raise Dynamo's limit in this thread: autograd's threads, which repeat checkpointed calls, inherit no settings."""
    import torch._dynamo

    return torch._dynamo.config.patch(recompile_limit=_limit())  # type: ignore[no-any-return]


def _whole() -> AbstractContextManager[None]:
    """Have the backward pass compiled with the forward pass, not when it first runs: then no rung is left to go to."""
    import torch._functorch.config

    settings, name = torch._functorch.config, "force_non_lazy_backward_lowering"
    # It is private: a PyTorch that drops it must compile at least as it likes.
    return settings.patch({name: True}) if hasattr(settings, name) else nullcontext()


def _compiler_failures() -> tuple[type[Exception], ...]:
    # Asked for only when something failed, since importing Dynamo takes a second. The second is no
    # TorchDynamoException.
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit
