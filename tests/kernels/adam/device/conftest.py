"""Tiles of Adam's kernels that the interpreter can afford."""

import adam_cases
import pytest

from scaffold.kernels.adam import plan


@pytest.fixture(autouse=True)
def _small_tile(monkeypatch):
    monkeypatch.setattr(plan, "TILE", adam_cases.TILE)
