"""The profiles: what each must say, and what none may."""

from typing import Any

import pytest
import yaml
from pipeline_workspace import ROOT
from snakemake_executor_plugin_slurm.partitions import read_partition_file

PROFILES = sorted((ROOT / "profiles").glob("*/profile.yaml"))
NEEDED = {
    "replace-workflow-config": True,
    "rerun-incomplete": True,
    "rerun-triggers": ["mtime", "params"],
    "nolock": True,
}
SCIENCE = {"config", "configfile", "configfiles"}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "profiles" / name / "profile.yaml").read_text())
    return content


@pytest.mark.parametrize("name", ["local", "slurm", "flux"])
def test_profile_keeps_what_the_workflow_relies_on(name: str) -> None:
    """Without these a study is merged into the default one, a killed run does not go on, or trainings are repeated."""
    profile = read(name)
    assert {key: profile.get(key) for key in NEEDED} == NEEDED
    assert not SCIENCE & set(profile)


def test_every_profile_is_tested() -> None:
    """A profile that this file does not know could lack all of it."""
    assert [path.parent.name for path in PROFILES] == ["flux", "local", "slurm"]


@pytest.mark.parametrize("name", ["slurm", "flux"])
def test_long_trainings_are_submitted_again(name: str) -> None:
    """A training of days under limits of hours ends only if it is resubmitted; no other run waits for it."""
    profile = read(name)
    assert profile["retries"] >= 3
    assert profile["keep-going"]


def test_example_of_partitions_is_read_by_the_plugin() -> None:
    """A misspelt limit in a file that users copy would refuse their first job."""
    partitions = read_partition_file(ROOT / "profiles/slurm/partitions.example.yaml")
    limits = {partition.name: partition.limits for partition in partitions}
    assert limits["cpu"].max_runtime == 24 * 60
    assert (limits["cpu"].max_gpu, limits["gpu"].max_gpu) == (0, 4)
