"""The manual and the schema say what the models say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from scaffold.config import Resources, RunConfig, Study, iter_keys, manual

CONFIG = Path(__file__).parents[2] / "config"


def test_files_are_up_to_date():
    """A key without its line in the manual; `make docs` writes both files."""
    assert (CONFIG / "README.md").read_text() == manual.readme()
    assert json.loads((CONFIG / "study.schema.json").read_text()) == manual.schema()


def test_every_key_is_in_the_manual_with_type_and_meaning():
    rows = [line for line in manual.readme().splitlines() if line.startswith("| `")]
    for dotted, _, info in iter_keys(RunConfig):
        (row,) = (row for row in rows if row.startswith(f"| `{dotted}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 8
        assert all(cells[i] for i in (1, 2, 4, 5, 6, 7)), row
        assert info.stage == cells[4]
    for name in Resources.model_fields:
        assert any(row.startswith(f"| `resources.{name}` |") for row in rows)


@pytest.fixture(scope="module")
def accepts():
    validator = jsonschema.Draft202012Validator(manual.schema())
    validator.check_schema(manual.schema())
    return validator.is_valid


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_schema_accepts_shipped_and_resolved_studies(accepts, path):
    assert accepts(yaml.safe_load(path.read_text()))
    assert accepts(Study.load(path).to_mapping())


@pytest.mark.parametrize(
    "study",
    [
        {},
        {"runs": {}},
        {"runs": {"Big": {}}},
        {"runs": {"a": {"sead": 1}}},
        {"runs": {"a": {"problem_scale": 13}}},
        {"runs": {"a": {"storage": {"image": "x"}}}},
        {"runs": {"a": {"ranks": [0]}}},
        {"runs": {"a": {"seeds": [2**63]}}},
        {"runs": {"a": {"resources": {"gpu": 1}}}},
        {"defaults": {"ranks": [1]}, "runs": {"a": {}}},
        {"runs": {"a": {}}, "other": 1},
    ],
)
def test_schema_refuses_what_the_models_refuse(accepts, study):
    """An editor that marks nothing is of no use."""
    assert not accepts(study)
    with pytest.raises(Exception, match="problem"):
        Study.from_mapping(study, "x")
