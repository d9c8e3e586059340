"""Compilation and its cache."""

from __future__ import annotations

import pytest
from numba import njit
from numba.core.caching import CacheImpl

from scaffold.fractals.jit import kernel


def _twice(x: int) -> int:
    return 2 * x


def test_kernels_are_cached_and_free_of_the_gil() -> None:
    """Without the cache each of N ranks compiles for seconds; with the GIL threads take turns."""
    compiled = kernel(_twice)
    assert compiled(4) == 8
    assert compiled.stats.cache_path
    assert compiled.targetoptions["nogil"]
    assert "fastmath" not in compiled.targetoptions


def test_a_site_without_a_writable_folder_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation owned by root on a node without home made numba refuse to load the module."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        njit(cache=True)(_twice)
    assert kernel(_twice)(4) == 8
