"""What a finished study has made."""

import csv
import json
import re

import pytest
from pipeline_workspace import Workspace

from scaffold.config import Study, dataset_name

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]


def test_every_product_is_there(finished_study: Workspace) -> None:
    """A user is promised the figure of merit, the figures, and one report."""
    results = finished_study.results
    for ranks in (1, 2):
        training = results / "runs" / "small" / f"ranks{ranks}" / "seed1"
        assert {path.name for path in training.iterdir() if path.is_file()} == {
            "config.yaml", "model.safetensors", "predictions.npz", "result.json", "train_stats.csv",
        }  # fmt: skip
        figures = results / "figures" / "small" / f"ranks{ranks}" / "seed1"
        assert {path.name for path in figures.iterdir()} == {"loss.svg", "dice.svg", "time.svg", "gallery.png"}
    rows = list(csv.DictReader((results / "summary.csv").open()))
    assert [(row["run"], row["ranks"]) for row in rows] == [("small", "1"), ("small", "2")]
    assert (results / "figures" / "scaling.svg").stat().st_size > 0


def test_figure_of_merit_belongs_to_its_data(finished_study: Workspace) -> None:
    """A figure of merit must say which bytes it was measured on, the same at both rank counts."""
    config = Study.load(finished_study.folder / "config/config.yaml").runs["small"].config
    meta = (finished_study.results / "datasets" / dataset_name(config) / "meta.yaml").read_text()
    digest = re.search(r"^digest: (\w+)$", meta, re.MULTILINE)
    assert digest is not None
    for ranks in (1, 2):
        text = (finished_study.results / f"runs/small/ranks{ranks}/fom.json").read_text()
        assert digest[1] in text
        result = json.loads((finished_study.results / f"runs/small/ranks{ranks}/seed1/result.json").read_text())
        assert result["converged"] is True
        assert result["world"]["ranks"] == ranks


def test_resolved_configuration_is_a_study(finished_study: Workspace) -> None:
    """What is written beside a result must be valid input and define the same training."""
    asked = Study.load(finished_study.folder / "config/config.yaml").runs["small"].config
    for file in ("study.yaml", "runs/small/ranks2/seed1/config.yaml"):
        assert Study.load(finished_study.results / file).runs["small"].config == asked


def test_report_explains_itself(finished_study: Workspace) -> None:
    """The report is what travels: figures with captions, in one file without network."""
    report = (finished_study.results / "report.html").read_text()
    for category in ("Figures of merit", "Training", "Data"):
        assert category in report
    for file in ("loss.svg", "gallery.png", "categories.png", "scaling.svg", "summary.csv", "fom.json"):
        assert file in report
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://', report)


def test_every_job_has_a_log(finished_study: Workspace) -> None:
    """A job whose output is nowhere cannot be judged afterwards."""
    logs = {path.parent.name for path in (finished_study.folder / "logs").glob("*/*.log")}
    assert logs >= {"search_categories", "generate_instances", "render_part", "publish_dataset", "train", "fom"}
    log = (finished_study.folder / "logs/train/small.ranks2.seed1.log").read_text()
    assert "epoch 1" in log
    assert (finished_study.folder / "logs/train/small.ranks2.seed1.log.1").read_text() == log
