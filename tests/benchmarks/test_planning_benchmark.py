"""The benchmark of planning still runs: it is not part of the package, and nothing else would notice."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from scaffold.config import Study, dataset_name, training_identity

_spec = importlib.util.spec_from_file_location("planning", Path(__file__).parents[2] / "benchmarks" / "planning.py")
assert _spec is not None
assert _spec.loader is not None
planning = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planning)

pytestmark = pytest.mark.pipeline


def test_a_study_that_is_made_has_nothing_left_to_do(tmp_path: Path) -> None:
    """With one run: a renamed output would let the benchmark time a study that is not finished."""
    study = planning.studies(1)["own"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    made, planned, nothing = planning.measure("own", 1, tmp_path, 1)
    assert [(row["state"], row["command"]) for row in (made, planned, nothing)] == [
        ("nothing made", "dry run"),
        ("all made", "dry run"),
        ("all made", "run"),
    ]
    assert int(str(made["jobs"])) == 11
    assert all(float(str(row["cpu_s"])) > 0 for row in (made, planned, nothing))


def test_the_studies_differ_in_what_they_share(tmp_path: Path) -> None:
    """Two studies that share, or do not share, alike would measure one thing twice."""
    for name, study in planning.studies(3).items():
        runs = Study.from_mapping(study, name).runs.values()
        assert len({training_identity(run.config) for run in runs}) == 3
        assert len({dataset_name(run.config) for run in runs}) == {"shared": 1, "own": 3}[name]
