"""What is redone after a change: exactly what it defines."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pipeline_workspace import ROOT, Workspace

from scaffold.config import Study
from scaffold.config.keys import STAGE_VERSIONS

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

REPORT = {"fom": 2, "plot_run": 2, "plot_scaling": 1, "summary": 1}
TRAINING = {"train": 2, **REPORT}
DATASET = {"render_part": 1, "publish_dataset": 1, **TRAINING}
INSTANCES = {"generate_instances": 2, "plot_categories": 1, **DATASET}
SEARCH = {"search_categories": 1, **INSTANCES}

TABLE = ROOT / "docs" / "user-guide.md"
COLUMNS = {
    "search": {"search_categories"},
    "instances": {"generate_instances"},
    "data set": {"render_part", "publish_dataset"},
    "training": {"train"},
    "figures, tables": {*REPORT, "plot_categories"},
}
ROWS = {
    "search": "a key of stage *search*",
    "dataset": "a key of stage *dataset*",
    "train": "a key of stage *train*, `target_dice` and `epochs` included",
    "target": "a key of stage *train*, `target_dice` and `epochs` included",
    "epochs": "a key of stage *train*, `target_dice` and `epochs` included",
    "launch": "a key of stage *launch*, `resources:`",
    "more seeds": "one more seed or rank count",
    "fewer ranks": "one rank count less",
}


def documented(row: str) -> set[str]:
    """Return the columns that the user guide ticks for a change, the first cell of whose row is ``row``."""
    lines = (line.strip("| ").split(" |") for line in TABLE.read_text().splitlines() if line.startswith("| "))
    table = {cells[0]: [cell.strip() for cell in cells[1:]] for cells in lines}
    header = table["change"]
    return {column for column, cell in zip(header, table[row], strict=False) if cell}


def columns(plan: dict[str, int]) -> set[str]:
    """Return the columns of the user guide's table that the rules of ``plan`` belong to."""
    return {column for column, rules in COLUMNS.items() if rules & plan.keys()}


def test_every_row_of_the_table_is_checked_here() -> None:
    """A promise of the user guide that no test below keeps would be broken unseen."""
    text = TABLE.read_text().partition("## What is redone")[2].partition("\n## ")[0]
    rows = {line.strip("| ").split(" |")[0] for line in text.splitlines() if line.startswith("| ")} - {"change"}
    source = Path(__file__).read_text()
    versions = {f"the code version of *{stage}*" for stage in STAGE_VERSIONS}
    assert {row for row in rows - versions if f'"{row}"' not in source} == set()
    assert versions < rows


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
                "run": {"resources": {"runtime": 7, "mem_mb": 999, "ranks_per_node": 1, "threads": 2, "gpus": 0}},
            },
            {},
        ),
        ({"run": {"seeds": [1, 2]}}, {**TRAINING, "plot_run": 2}),
        ({"run": {"ranks": [2]}}, {"plot_scaling": 0, "summary": 1}),
    ],
    ids=["search", "dataset", "train", "target", "epochs", "launch", "more seeds", "fewer ranks"],
)  # fmt: skip
def test_a_key_redoes_what_it_defines(
    finished: Workspace, changes: dict[str, Any], redone: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """Too little redone is a stale result; too much is a day of GPUs; launch keys change no result."""
    finished.change(**changes)
    plan = finished.plan()
    assert plan == {rule: count for rule, count in redone.items() if count}
    assert columns(plan) == documented(ROWS[request.node.callspec.id])


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
    plan = finished.plan()
    assert plan == redone
    assert columns(plan) == documented(f"the code version of *{stage}*")


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
    plan = finished.plan()
    assert plan == redone
    behind_figures = "scripts" in file or "reporting" in file
    other = "an edit of any other code, the text of a rule included"
    row = "an edit of the code behind figures and tables" if behind_figures else other
    assert columns(plan) == documented(row)


def test_a_profile_redoes_nothing(finished: Workspace) -> None:
    """Moving a study to another launcher must not start it anew."""
    profile = finished.folder / "site"
    profile.mkdir()
    (profile / "profile.yaml").write_text(
        "cores: 1\nretries: 5\nrerun-triggers: [mtime, params]\nset-threads: {search_categories: 1}\n"
        "set-resources: {train: {launcher: srun -n 2, mem_mb: 1, runtime: 9}, render_part: {tasks: 4}}\n"
    )
    done = finished.snakemake("--dry-run", "--profile", str(profile), profile=None)
    assert "Nothing to be done" in done.stdout
    assert documented("another profile, launcher, number of cores") == set()


def test_a_profile_that_would_retrain_is_refused(finished: Workspace) -> None:
    """Snakemake's own triggers see that a finished training has dropped its input: a day of GPUs for nothing."""
    done = finished.snakemake("--cores", "1", profile=None)
    assert done.returncode == 1
    assert re.search(r"^train +2$", done.stdout, re.M)
    assert "put `rerun-triggers: [mtime, params]` into the profile" in done.stdout
    assert "Traceback" not in done.stdout


def test_another_path_of_the_same_study_redoes_nothing(finished: Workspace) -> None:
    """A study file may be renamed; its content is what counts."""
    (finished.folder / "config/config.yaml").rename(finished.folder / "mine.yaml")
    assert finished.plan("--configfile", "mine.yaml") == {}
    assert documented("another path of the same study file") == set()


@pytest.mark.parametrize("lost", ["parts/0000/images.npy", "meta.yaml", "."])
def test_lost_data_are_made_again_without_retraining(finished: Workspace, lost: str) -> None:
    """Deleted data are noticed, to the last file; the same bytes come back, so no training is repeated."""
    (folder,) = finished.results.glob("datasets/*")
    before = {path: path.read_bytes() for path in folder.rglob("*.npy")}
    results = list(finished.results.glob("runs/**/result.json"))
    trained = [result.stat().st_mtime_ns for result in results]
    path = folder / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()

    rendered = {} if lost == "meta.yaml" else {"render_part": 1}
    assert finished.plan() == {**rendered, "publish_dataset": 1}
    assert documented("a lost file of a data set") == {"data set"}
    finished.make()
    assert {path: path.read_bytes() for path in folder.rglob("*.npy")} == before
    assert [result.stat().st_mtime_ns for result in results] == trained
    assert finished.plan() == {}


@pytest.mark.parametrize("cause", ["key", "results"])
def test_training_is_examined_while_its_data_are_made_again(finished: Workspace, cause: str) -> None:
    """A stale result with exit code 0: Snakemake asks nothing of what stands behind an `ancient` file."""
    (masks,) = finished.results.glob("datasets/*/parts/0000/masks.npy")
    # Altered, hence newer than what was published: publishing has a reason of its own.
    masks.write_bytes(masks.read_bytes()[::-1])
    assert finished.plan() == {"publish_dataset": 1}
    if cause == "key":
        finished.change(starting_learning_rate=0.002)
    else:
        shutil.rmtree(finished.results / "runs")
        assert documented("a lost result of a training") == columns(TRAINING)
    assert finished.plan() == {"publish_dataset": 1, **TRAINING}


def test_changed_key_and_lost_data_end_in_the_new_result(finished: Workspace) -> None:
    """The training waits for its data, whichever of its reasons to run came first."""
    (part,) = finished.results.glob("datasets/*/parts/0000")
    shutil.rmtree(part)
    finished.change(starting_learning_rate=0.002, run={"ranks": [1]})
    finished.make()
    trained = Study.load(finished.results / "runs/small/ranks1/seed1/config.yaml").runs["small"].config
    assert trained.starting_learning_rate == 0.002
    assert finished.plan() == {}


def test_another_set_of_results_redoes_what_is_made_of_them(finished: Workspace) -> None:
    """Results that are already there, as when a seed is taken back into a study, are older than the figure."""
    for ranks in (1, 2):
        runs = finished.results / "runs" / "small" / f"ranks{ranks}"
        shutil.copytree(runs / "seed1", runs / "seed2")
    finished.change(run={"seeds": [1, 2]})
    assert finished.plan() == REPORT
