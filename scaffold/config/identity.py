"""Names and hashes that say which results belong to which settings.

Each is a pure function of exactly the keys that define a result and of the code versions of the
stages that made it, so that changing a key changes the names of what it defines and of nothing else.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from scaffold.config.keys import STAGE_VERSIONS, iter_keys, stage_version, value_of
from scaffold.config.run import RunConfig


def digest(content: Any) -> str:
    """Return the first 12 hex digits of the SHA-256 of the compact, key-sorted JSON of ``content``."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def settings_of(config: RunConfig, *stages: str) -> dict[str, Any]:
    """Return the dotted keys of ``config`` whose stage is among ``stages``, with their values."""
    return {dotted: value_of(config, dotted) for dotted, _, info in iter_keys(RunConfig) if info.stage in stages}


def versions_of(*stages: str) -> dict[str, int]:
    """Return the code versions of ``stages``, as ``version.STAGE``."""
    return {f"version.{stage}": stage_version(stage) for stage in stages}


def library_settings(config: RunConfig) -> dict[str, Any]:
    """Return what defines a library of categories: the search keys and the search's code version."""
    return {**settings_of(config, "search"), **versions_of("search")}


def dataset_settings(config: RunConfig) -> dict[str, Any]:
    """Return what defines a data set: keys and code versions of every stage up to it."""
    stages = ("search", "instances", "dataset")
    return {**settings_of(config, *stages), **versions_of(*stages)}


def library_name(config: RunConfig) -> str:
    """Return the name of the folder of a run's categories, e.g. ``scale7-c5-1a2b3c4d5e6f``."""
    return f"scale{config.problem_scale}-c{config.n_categories}-{digest(library_settings(config))}"


def dataset_name(config: RunConfig) -> str:
    """Return the name of the folder of a run's data set, e.g. ``scale7-n240-dense-1a2b3c4d5e6f``.

    Its last part is the data set's ``config_id``.
    """
    return f"scale{config.problem_scale}-n{config.n_volumes}-{config.storage.image}-{config_id(config)}"


def config_id(config: RunConfig) -> str:
    """Return the digest that ``meta.yaml`` carries as ``config_id``."""
    return digest(dataset_settings(config))


def training_identity(config: RunConfig) -> str:
    """Return the digest of all that defines a training's result, its data included.

    Two trainings with equal identity, ranks and seed give the same result; when it changes, the
    published result is out of date.
    """
    return digest({"data": dataset_settings(config), **settings_of(config, "train"), **versions_of("train")})


def resume_identity(config: RunConfig) -> str:
    """Return the digest of what must be equal for a checkpoint to be continued.

    Unlike :func:`training_identity` it leaves out the keys that may change between a checkpoint and
    its resume (``target_dice``, ``epochs``).
    """
    fixed = {
        dotted: value_of(config, dotted)
        for dotted, _, info in iter_keys(RunConfig)
        if info.stage == "train" and not info.resume
    }
    return digest({"data": dataset_settings(config), **fixed, **versions_of("train")})


def must_match(config: RunConfig) -> dict[str, Any]:
    """Return what must be equal, with values, for two figures of merit to be comparable.

    That is the keys which say so, and the code version of every stage: it is raised when a stage's result
    changes, and equal settings then no longer mean the same data or the same training. Per-shard
    normalisation statistics change the mathematics, hence sharding belongs to them there.
    """
    keys = {dotted: value_of(config, dotted) for dotted, _, info in iter_keys(RunConfig) if info.must_match}
    if config.group_norm_statistics == "local":
        keys["dc_num_shards"] = list(config.dc_num_shards)
    return {**keys, **versions_of(*STAGE_VERSIONS)}
