"""Verbs about settings."""

from __future__ import annotations

import json

import pytest
import yaml

from scaffold.cli import main, outlook
from scaffold.config import RunConfig, Study
from scaffold.model.size import training_bytes

STUDY = "defaults: {problem_scale: 5, unet_base_channels: 8, n_categories: 3, n_instances_used_per_fractal: 24}\n"


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "runs:\n  a: {ranks: [1, 2], seeds: [1, 2, 3]}\n  b: {optimizer: SGD}\n")
    return path


def test_check_config_tells_what_would_be_made(study, capsys):
    assert main(["check-config", "study.yaml"]) == 0
    text = capsys.readouterr().out
    assert "study.yaml: 7 trainings in 2 runs" in text
    assert "a: ranks 1, 2; seeds 1, 2, 3" in text
    assert "17 + 7 volumes of 32^3, 3 categories; results/datasets/scale5-n24-dense-" in text
    assert "U-Net of 2 levels, 8 base channels, 85,636 parameters" in text
    assert "free here: " in text
    assert list(study.parent.iterdir()) == [study]


def test_bytes_by_hand(study):
    """One data set and one library for both runs, six trainings with Adam and one with SGD."""
    text = "\n".join(outlook.outlook(Study.load(study), study.parent))
    instances = 3 * 145 * (32**3 // 256) * 12
    samples = 24 * 32**3 * 14
    models = 4 * 85_636 * (6 * (2 * 3 + 1) + (2 * 1 + 1))
    assert (
        f"instances {outlook.size(instances)}, data sets {outlook.size(samples)}, models {outlook.size(models)}" in text
    )
    assert f"disk: {outlook.size(instances + samples + models)}" in text


def test_a_disk_too_small_is_told(study, monkeypatch):
    config = RunConfig()
    need = config.instances_bytes + config.dataset_bytes + training_bytes(config)
    one = Study.from_mapping({"runs": {"a": {}}}, "x")

    class Usage:
        free = need + 1

    monkeypatch.setattr(outlook.shutil, "disk_usage", lambda path: Usage)
    assert list(outlook.outlook(one, study.parent))[-1].startswith("  free here")
    Usage.free = need
    assert list(outlook.outlook(one, study.parent))[-1].startswith("  NOT ENOUGH SPACE here")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (45_600_000, "45.6 MB"), (29.2e12, "29.2 TB"), (5e15, "5e+03 TB")],
)
def test_sizes(count, text):
    assert outlook.size(count) == text


def test_wrong_study_makes_nothing(study, capsys):
    study.write_text("runs: {a: {sead: 1}}")
    assert main(["check-config", "study.yaml"]) == 2
    assert "line 1: runs.a.sead: unknown key; did you mean seed?" in capsys.readouterr().err
    assert list(study.parent.iterdir()) == [study]


def test_set_reaches_the_study(study, capsys):
    assert main(["check-config", "study.yaml", "--set", "problem_scale=6", "--set", "unet_base_channels=16"]) == 0
    assert "volumes of 64^3" in (text := capsys.readouterr().out)
    assert "16 base channels" in text
    assert main(["check-config", "study.yaml", "--set", "problem_scale=99"]) == 2


def test_import_config(tmp_path, capsys):
    source, output = tmp_path / "benchmark.yml", tmp_path / "study.yaml"
    source.write_text("problem_scale: 7\nn_categories: 5\njob_name: mine\nframework: torch\n")
    assert main(["import-config", str(source), "--output", str(output)]) == 0
    assert "framework: dropped; PyTorch is the only framework" in capsys.readouterr().out
    assert yaml.safe_load(output.read_text()) == {"runs": {"mine": {"problem_scale": 7, "n_categories": 5}}}
    assert Study.load(output).run("mine").config == RunConfig()


@pytest.mark.parametrize("text", ["problem_scale: 7\nn_categories: 0\n", "runs: {a: {}}\n"])
def test_import_of_a_wrong_file_makes_nothing(tmp_path, capsys, text):
    source, output = tmp_path / "benchmark.yml", tmp_path / "study.yaml"
    source.write_text(text)
    assert main(["import-config", str(source), "--output", str(output)]) == 2
    assert str(source) in capsys.readouterr().err
    assert not output.exists()


def test_config_docs(tmp_path):
    assert main(["config-docs", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text().startswith("# Configuration")
    assert json.loads((tmp_path / "study.schema.json").read_text())["title"] == "Scaffold study"
