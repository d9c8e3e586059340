#!/usr/bin/env python3
"""``submit.py JOBSCRIPT``: submits a job of Snakemake's with ``flux batch`` and prints its id.

What the job needs is in the job script, in a comment that Snakemake writes: see docs/clusters.md for
the resources that are read. ``{{id}}`` in the log's name is filled in by Flux.
"""

import json
import os
import shlex
import sys
from pathlib import Path

LOGS = Path("logs/flux")
PROPERTIES = "# properties = "


def command(jobscript: str) -> list[str]:
    """Return the command that submits ``jobscript``."""
    lines = Path(jobscript).read_text().splitlines()
    job = json.loads(next(line for line in lines if line.startswith(PROPERTIES)).removeprefix(PROPERTIES))
    resources = job["resources"]
    name = job.get("rule") or job["groupid"]
    nodes = resources.get("nodes", 1)
    tasks = resources.get("tasks") or nodes * resources.get("tasks_per_node", 1)
    return [
        "flux",
        "batch",
        f"--job-name=scaffold-{name}",
        f"--output={LOGS / name}.{job['jobid']}.{{{{id}}}}.log",
        f"--time-limit={resources['runtime']}m",
        f"--nodes={nodes}",
        f"--nslots={tasks}",
        f"--cores-per-slot={resources.get('cpus_per_task', job['threads'])}",
        f"--gpus-per-slot={resources.get('gpus_per_task', 0)}",
        *shlex.split(resources.get("flux_options", "")),
        jobscript,
    ]


if __name__ == "__main__":
    LOGS.mkdir(parents=True, exist_ok=True)
    submit = command(sys.argv[1])
    os.execvp(submit[0], submit)
