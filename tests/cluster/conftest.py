"""A Slurm, and one study that was run on it, for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_study import BrokenStudy
from pipeline_workspace import ROOT, Workspace
from slurm_cluster import SlurmCluster, why_not

LOG = ROOT / "build" / "cluster-tests.log"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes for all jobs, and one that will fail."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    root: Path = tmp_path_factory.mktemp("slurm")
    with SlurmCluster(root, {"batch": ["n1", "n2"], "frail": ["n3"]}, cpus=4).running() as running:
        yield running


@pytest.fixture(scope="session")
def study(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> BrokenStudy:
    """The study, run to its end; what was done to it is in build/cluster-tests.log."""
    broken = BrokenStudy(Workspace(tmp_path_factory.mktemp("study")), cluster)
    broken.run()
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text(broken.summary())
    print(f"\n{broken.summary()}")
    return broken
