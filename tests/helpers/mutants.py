"""Kernels with one thing wrong, for the tests that show that a comparison notices it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def mutant(original: ModuleType, old: str, new: str, patch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    """Return a copy of a module in whose source ``new`` stands wherever ``old`` did.

    The copy lies in a file, from which Triton reads the kernels' source.
    """
    source = Path(str(original.__file__)).read_text()
    assert old in source, f"{original.__name__} has changed: {old!r} is no longer in it"
    name = f"mutant_of_{original.__name__.replace('.', '_')}"
    file = folder / f"{name}.py"
    file.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module
