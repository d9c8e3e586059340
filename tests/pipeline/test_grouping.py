"""Data generation on a cluster: many small jobs of the workflow in few jobs of the scheduler."""

import pytest
from pipeline_workspace import Workspace

pytest.importorskip("snakemake_executor_plugin_cluster_generic", reason="it submits to the scheduler of this test")
pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

# A scheduler that runs each job at once, and notes it.
SUBMIT = '#!/bin/bash\necho "$1" >> submitted\nbash "$1" >> scheduler.log 2>&1\necho 1\n'

PROFILE = """\
executor: cluster-generic
cluster-generic-submit-cmd: {submit}
jobs: 1
rerun-triggers: [mtime, params]
nolock: true
groups: [search_categories=data, generate_instances=data, render_part=data]
group-components: [data=20]
"""


def test_the_data_of_a_study_are_one_job_of_the_scheduler(fresh: Workspace) -> None:
    """300 data sets would be thousands of jobs, each of which waits in the queue for seconds of work."""
    submit = fresh.folder / "submit.sh"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    profile = fresh.folder / "site"
    profile.mkdir()
    (profile / "profile.yaml").write_text(PROFILE.format(submit=submit))
    planned = fresh.plan("--until", "render_part")
    assert planned == {"search_categories": 1, "generate_instances": 2, "render_part": 1}

    done = fresh.snakemake("--profile", str(profile), "--until", "render_part", profile=None)
    assert done.returncode == 0, done.stdout + (fresh.folder / "scheduler.log").read_text()
    assert len(list(fresh.results.glob("datasets/*/parts/0000/masks.npy"))) == 1
    assert len((fresh.folder / "submitted").read_text().splitlines()) == 1
