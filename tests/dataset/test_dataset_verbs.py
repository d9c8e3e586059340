"""The verbs of the data set, as Snakemake and users call them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from small_datasets import flip, small_config, write_instances

from scaffold import atomic
from scaffold.cli import main
from scaffold.config import dataset_name
from scaffold.errors import ExitCode


@pytest.fixture
def study(tmp_path):
    config = small_config(n_categories=2, n_instances_used_per_fractal=7)
    atomic.write_yaml(tmp_path / "study.yaml", {"runs": {"a": config.model_dump()}})
    write_instances(tmp_path / "instances", config)
    return tmp_path, config


def _run(*words):
    return main([str(word) for word in words])


def test_from_clouds_to_a_verified_data_set(study, capsys, caplog):
    """Broken when the verbs do not fit together, or a rounded setting passes in silence."""
    folder, config = study
    select = ["--config", folder / "study.yaml", "--dataset", dataset_name(config)]
    part, meta = folder / "data" / "parts" / "0000", folder / "data" / "meta.yaml"
    assert _run("render", *select, "--part", 0, "--instances", folder / "instances", "--output", part) == 0
    assert "7 is rounded down to 6" in capsys.readouterr().err
    assert _run("publish", *select, "--parts", part.parent, "--output", meta) == 0
    assert "3 + 1 samples, digest" in capsys.readouterr().out
    assert _run("verify-dataset", meta.parent, "--threads", 2) == 0
    flip(part / "masks.npy", 5000)
    assert _run("verify-dataset", meta.parent) == ExitCode.DAMAGED
    told = capsys.readouterr().out
    assert f"{part / 'masks.npy'}, sample 0" in told
    assert f"--force {part / 'part.json'}" in told


def test_publishing_nothing_names_the_missing_part(study, capsys):
    """Broken when an unrendered data set is published, or the exit code says that the user is at fault."""
    folder, _ = study
    parts, meta = folder / "data" / "parts", folder / "data" / "meta.yaml"
    code = _run("publish", "--config", folder / "study.yaml", "--parts", parts, "--output", meta)
    assert code == ExitCode.DAMAGED
    assert "parts/0000/images.npy is missing" in capsys.readouterr().err


def test_verifying_what_is_no_data_set(tmp_path, capsys):
    """Broken when a wrong folder is called damaged or, worse, sound."""
    assert _run("verify-dataset", tmp_path) == ExitCode.USER_ERROR
    assert "is not a data set" in capsys.readouterr().err


def test_data_stages_start_without_torch():
    """Broken when rendering or publishing imports torch, which takes seconds and memory in every job."""
    code = "import sys; from scaffold.dataset import render, publish, verify; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
