"""Exit codes, and errors that carry them between processes."""

from __future__ import annotations

import pickle

import pytest

from scaffold import errors
from scaffold.errors import ExitCode


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UserError("x"), 2),
        (errors.DamagedFileError("f.npy", "is truncated", "make it"), 65),
        (errors.IncurableError("x"), 70),
        (errors.WriteError("x"), 74),
        (errors.StoppedError("x"), 75),
        (errors.ScaffoldError("x"), 1),
    ],
)
def test_codes_are_the_documented_ones_and_survive_pickling(error, code):
    """A scheduler's script decides by them whether to try again."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_code) == (type(error), str(error), code)


def test_codes_are_distinct():
    assert len(set(ExitCode)) == len(ExitCode.__members__) == 7


def test_damage_names_file_and_remedy():
    error = errors.DamagedFileError("a/f.npy", "is truncated: 3 of 9 bytes", "snakemake --force a/f.npy")
    assert str(error) == "a/f.npy is truncated: 3 of 9 bytes; rebuild it with: snakemake --force a/f.npy"
    assert pickle.loads(pickle.dumps(error)).remedy == "snakemake --force a/f.npy"
