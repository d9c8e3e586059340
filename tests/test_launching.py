"""The tests' own launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import mpiexec


def test_a_machine_without_mpiexec_fails_the_tests_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Skipped, all that holds for several ranks would go untested without anyone noticing."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="there is no mpiexec"):
        mpiexec()
    (tmp_path / "mpiexec").touch(mode=0o755)
    assert mpiexec() == str(tmp_path / "mpiexec")
