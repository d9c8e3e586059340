"""Compilation and its cache."""

from __future__ import annotations

import pytest
from numba import njit
from numba.core.caching import CacheImpl

from scaffold.compiled import compiled


def _twice(x: int) -> int:
    return 2 * x


def test_compiled_functions_are_cached_and_free_of_the_gil() -> None:
    """Without the cache each of N ranks compiles for seconds; with the GIL threads take turns."""
    twice = compiled(_twice)
    assert twice(4) == 8
    assert twice.stats.cache_path
    assert twice.targetoptions["nogil"]
    assert "fastmath" not in twice.targetoptions


def test_a_site_without_a_writable_folder_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation owned by root on a node without home made numba refuse to load the module."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        njit(cache=True)(_twice)
    assert compiled(_twice)(4) == 8
