"""What is redone after a change: exactly what it defines."""

from typing import Any

import pytest
from pipeline_workspace import Workspace

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

REPORT = {"fom": 2, "plot_run": 2, "plot_scaling": 1, "summary": 1}
TRAINING = {"train": 2, **REPORT}
DATASET = {"render_part": 1, "publish_dataset": 1, **TRAINING}
INSTANCES = {"generate_instances": 2, "plot_categories": 1, **DATASET}
SEARCH = {"search_categories": 1, **INSTANCES}


def test_finished_study_is_finished(finished_study: Workspace) -> None:
    """A second `make run` must take seconds."""
    assert finished_study.plan() == {}


@pytest.mark.parametrize(
    ("changes", "redone"),
    [
        ({"seed": 43}, SEARCH),
        ({"n_fracts_per_vol": 2}, DATASET),
        ({"starting_learning_rate": 0.002}, TRAINING),
        ({"target_dice": 0.001}, TRAINING),
        ({"epochs": 1}, TRAINING),
        (
            {
                "checkpoint_interval": -1, "async_save": False, "max_runtime": 60.0, "dataloader_num_workers": 1,
                "run": {"resources": {"runtime": 7, "mem_mb": 999, "nodes": 1, "threads": 2, "gpus": 0}},
            },
            {},
        ),
        ({"run": {"seeds": [1, 2]}}, {**TRAINING, "plot_run": 2}),
        ({"run": {"ranks": [2]}}, {"plot_scaling": 0, "summary": 1}),
    ],
    ids=["search", "dataset", "train", "target", "epochs", "launch", "more seeds", "fewer ranks"],
)  # fmt: skip
def test_a_key_redoes_what_it_defines(finished: Workspace, changes: dict[str, Any], redone: dict[str, int]) -> None:
    """Too little redone is a stale result; too much is a day of GPUs; launch keys change no result."""
    finished.change(**changes)
    assert finished.plan() == {rule: count for rule, count in redone.items() if count}


@pytest.mark.parametrize(
    ("stage", "redone"), [("search", SEARCH), ("instances", INSTANCES), ("dataset", DATASET), ("train", TRAINING)]
)
def test_a_code_version_redoes_its_stage_and_what_follows(
    finished: Workspace, stage: str, redone: dict[str, int]
) -> None:
    """Snakemake does not see edits inside a package: the version is what tells it."""
    keys = finished.use_copy_of_source() / "scaffold" / "config" / "keys.py"
    assert finished.plan() == {}
    text = keys.read_text()
    assert text.count(f'"{stage}": 1') == 1
    keys.write_text(text.replace(f'"{stage}": 1', f'"{stage}": 2'))
    assert finished.plan() == redone


@pytest.mark.parametrize(
    ("file", "redone"),
    [
        ("workflow/scripts/plot_run.py", {"plot_run": 2}),
        ("scaffold/reporting/style.py", {**REPORT, "plot_categories": 1}),
        ("scaffold/training/loop.py", {}),
        ("workflow/rules/training.smk", {}),
    ],
)
def test_an_edit_of_code_redoes_figures_alone(finished: Workspace, file: str, redone: dict[str, int]) -> None:
    """Nobody dares to mend a figure, or the wording of a rule, if that retrains for a day."""
    edited = finished.use_copy_of_source() / file
    text = edited.read_text().replace(" -m scaffold train", "  -m  scaffold train")
    edited.write_text(f"{text}\n# edited\n")
    assert finished.plan() == redone


def test_a_profile_redoes_nothing(finished: Workspace) -> None:
    """Moving a study to another launcher must not start it anew."""
    profile = finished.folder / "site"
    profile.mkdir()
    (profile / "profile.yaml").write_text(
        "cores: 1\nretries: 5\nset-threads: {search_categories: 1}\n"
        "set-resources: {train: {launcher: srun -n 2, mem_mb: 1, runtime: 9}, render_part: {tasks: 4}}\n"
    )
    done = finished.snakemake("--dry-run", "--profile", str(profile), profile=None)
    assert "Nothing to be done" in done.stdout


def test_another_path_of_the_same_study_redoes_nothing(finished: Workspace) -> None:
    """A study file may be renamed; its content is what counts."""
    (finished.folder / "config/config.yaml").rename(finished.folder / "mine.yaml")
    assert finished.plan("--configfile", "mine.yaml") == {}


def test_lost_samples_are_rendered_again_without_retraining(finished: Workspace) -> None:
    """A deleted sample file is noticed; the same bytes come back, so no training is repeated."""
    (images,) = finished.results.glob("datasets/*/parts/0000/images.npy")
    before = images.read_bytes()
    result = finished.results / "runs/small/ranks1/seed1/result.json"
    trained = result.stat().st_mtime_ns
    images.unlink()

    assert finished.plan() == {"render_part": 1, "publish_dataset": 1}
    finished.make()
    assert images.read_bytes() == before
    assert result.stat().st_mtime_ns == trained
    assert finished.plan() == {}
