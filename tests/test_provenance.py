"""Who made a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import scaffold
from scaffold import provenance

PACKAGE = Path(scaffold.__file__).parent


def git(folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments],
        check=True, capture_output=True, text=True, env=environment,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def checkout(tmp_path):
    """A source tree with the few modules that provenance needs, committed."""
    source = tmp_path / "checkout"
    (source / "scaffold").mkdir(parents=True)
    for name in ("__init__.py", "provenance.py"):
        shutil.copy(PACKAGE / name, source / "scaffold")
    git(source, "init", "-q")
    git(source, "add", "scaffold/__init__.py", "scaffold/provenance.py")
    git(source, "commit", "-qm", "all")
    return source


def commit_told_by(source, cwd, **environment):
    code = "from scaffold import provenance; print(provenance.commit())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_commit_of_the_source_tree_not_of_the_working_directory(checkout, tmp_path):
    revision = git(checkout, "rev-parse", "--short=12", "HEAD")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(elsewhere, "init", "-q")
    git(elsewhere, "commit", "-q", "--allow-empty", "-m", "other")
    assert commit_told_by(checkout, elsewhere) == revision
    # A git hook of the other repository sets this for all that it starts.
    assert commit_told_by(checkout, elsewhere, GIT_DIR=str(elsewhere / ".git")) == revision


def test_changed_tree_is_told(checkout):
    revision = git(checkout, "rev-parse", "--short=12", "HEAD")
    (checkout / "notes.txt").write_text("not tracked")
    assert commit_told_by(checkout, checkout) == revision
    with open(checkout / "scaffold" / "__init__.py", "a") as file:
        file.write("\n")
    assert commit_told_by(checkout, checkout) == f"{revision}-dirty"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_checkout_of_another_user_has_a_commit_too(checkout):
    """A container often runs as root over a user's checkout, and a site may share one."""
    revision = git(checkout, "rev-parse", "--short=12", "HEAD")
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 12345, 12345)
    with pytest.raises(subprocess.CalledProcessError):
        git(checkout, "rev-parse", "HEAD")
    assert commit_told_by(checkout, checkout) == revision


def test_package_outside_a_checkout(checkout, tmp_path):
    """Installed into a virtual environment inside some other repository, it must not take that one's commit."""
    installed = checkout / "venv" / "site-packages"
    shutil.copytree(checkout / "scaffold", installed / "scaffold")
    assert commit_told_by(installed, checkout) == "no-commit-id"


def test_no_git_is_no_error(checkout, tmp_path):
    assert commit_told_by(checkout, checkout, PATH=str(tmp_path)) == "no-commit-id"


def test_stamp_is_plain_json_and_names_the_libraries():
    stamp = provenance.stamp()
    assert json.loads(json.dumps(stamp)) == stamp
    assert stamp["scaffold"] == scaffold.__version__
    assert {"numpy", "numba", "torch", "snakemake"} <= set(stamp["versions"])
    import numpy

    assert stamp["versions"]["numpy"] == numpy.__version__
    assert stamp["python"] == sys.version.split()[0]


def test_time_is_utc_to_the_second():
    moment = datetime.fromisoformat(provenance.now())
    assert moment.utcoffset() == timedelta(0)
    assert moment.microsecond == 0
    assert abs(datetime.now(moment.tzinfo) - moment) < timedelta(seconds=10)


def test_stamp_does_not_import_what_it_names():
    """Plots and Snakemake's main process stamp files too; torch would cost them seconds."""
    code = "import sys; from scaffold import provenance; provenance.stamp(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
