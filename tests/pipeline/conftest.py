"""One finished study, run once in a session, that the tests copy."""

import shutil
from pathlib import Path

import pytest
from pipeline_workspace import STUDY, Workspace


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The study, run to its end, with the report. Shared: copy it before changing anything."""
    workspace = Workspace(tmp_path_factory.mktemp("finished"))
    workspace.write_study(STUDY)
    workspace.make("--report", "results/report.html", "--report-after-run")
    return workspace


@pytest.fixture
def finished(finished_study: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished study, with the times of its files."""
    shutil.copytree(finished_study.folder, tmp_path / "work", symlinks=True)
    return Workspace(tmp_path / "work")


@pytest.fixture
def fresh(tmp_path: Path) -> Workspace:
    """A working directory with the study and nothing else."""
    workspace = Workspace(tmp_path)
    workspace.write_study(STUDY)
    return workspace
