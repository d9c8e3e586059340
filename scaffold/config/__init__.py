"""The one truth about settings: typed, strict models of a study and of one benchmark run.

``run`` holds every key; ``keys`` what is known of a key besides its type; ``study`` reads a file of
runs; ``checks`` looks across keys; ``identity`` derives names and hashes; ``problems`` words the
errors; ``llnl`` imports LLNL's files; ``manual`` writes ``config/README.md`` and the editor schema.
"""

from scaffold.config.identity import (
    config_id,
    dataset_name,
    library_name,
    must_match,
    resume_identity,
    training_identity,
)
from scaffold.config.keys import KeyInfo, iter_keys, stage_version
from scaffold.config.problems import ConfigError, Problem
from scaffold.config.run import INSTANCES_PER_CATEGORY, RunConfig
from scaffold.config.study import Job, Resources, RunSpec, Study

__all__ = [
    "INSTANCES_PER_CATEGORY",
    "ConfigError",
    "Job",
    "KeyInfo",
    "Problem",
    "Resources",
    "RunConfig",
    "RunSpec",
    "Study",
    "config_id",
    "dataset_name",
    "iter_keys",
    "library_name",
    "must_match",
    "resume_identity",
    "stage_version",
    "training_identity",
]
