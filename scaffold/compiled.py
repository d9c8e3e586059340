"""Compiled functions: numba without the interpreter's lock, cached where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile ``function`` on its first call; it runs without the GIL, so threads run it side by side.

    The machine code is cached beside the source, else in the user's cache folder (``NUMBA_CACHE_DIR``
    overrides both). Where neither can be written (an installation owned by root and a home that is
    not mounted) the function is compiled in every process instead.

    Floating-point arithmetic stays as written: numba contracts and reorders nothing unless told to
    (``fastmath``), so that all machines compute the same bits. Never tell it to.

    A cache entry is out of date when the file of the function changes, not when the file of one
    that it calls does: keep compiled functions that call one another in one module.
    """
    try:
        return cast(_F, njit(nogil=True, cache=True)(function))
    except RuntimeError:
        return cast(_F, njit(nogil=True)(function))
