"""Checks across keys: whatever would otherwise fail only after hours of data generation."""

from __future__ import annotations

from collections.abc import Iterator

from scaffold.config.problems import Problem
from scaffold.config.run import RunConfig
from scaffold.wording import count

# The reader hands dense masks out as int16, which every device can index with.
_MAX_LABEL = {"dense": 32767, "labels": 255}


def cross_check(config: RunConfig, ranks: int | None = None) -> list[Problem]:
    """Return what is inconsistent in ``config``; with ``ranks`` also what cannot run on that many.

    The keys of the problems are relative to the run.
    """
    problems = [*_model(config), *_data(config), *_training(config)]
    if ranks is not None and not problems:
        problems += _ranks(config, ranks)
    return problems


def _model(config: RunConfig) -> Iterator[Problem]:
    bottleneck, scale = config.unet_bottleneck_dim, config.problem_scale
    if bottleneck > scale - 1:
        yield Problem(
            "unet_bottleneck_dim",
            str(bottleneck),
            f"must be at most problem_scale - 1 = {scale - 1}, so that the U-Net has a level",
        )
        return
    if config.unet_base_channels % config.group_norm_groups:
        yield Problem(
            "group_norm_groups",
            str(config.group_norm_groups),
            f"must divide unet_base_channels = {config.unet_base_channels}",
        )
    if len(set(config.dc_shard_dims)) < len(config.dc_shard_dims):
        yield Problem("dc_shard_dims", str(config.dc_shard_dims), "must name each of 2, 3, 4 once")
    limit = 2**bottleneck
    if max(config.dc_num_shards) > limit:
        yield Problem(
            "dc_num_shards",
            str(config.dc_num_shards),
            f"each must be at most 2^unet_bottleneck_dim = {limit}: at the bottleneck every block needs a voxel",
        )
    elif config.total_shards > 1:
        yield Problem(
            "dc_num_shards",
            str(config.dc_num_shards),
            "must be [1, 1, 1]: training on sharded samples is not available in this version",
        )


def _data(config: RunConfig) -> Iterator[Problem]:
    limit = _MAX_LABEL[config.storage.image]
    if config.n_categories > limit:
        yield Problem(
            "n_categories",
            str(config.n_categories),
            f"must be at most {limit} with storage.image: {config.storage.image}",
        )
    if config.instances_used == 0:
        yield Problem(
            "n_instances_used_per_fractal",
            str(config.n_instances_used_per_fractal),
            f"must be at least n_fracts_per_vol = {config.n_fracts_per_vol}",
        )
    elif config.n_validation < 1:
        yield Problem(
            "val_split",
            str(config.val_split),
            f"leaves no validation volume: {config.val_split} % of {config.n_volumes} volumes, rounded down, is 0",
        )


def _training(config: RunConfig) -> Iterator[Problem]:
    if config.min_learning_rate > config.starting_learning_rate:
        yield Problem(
            "min_learning_rate",
            str(config.min_learning_rate),
            f"must be at most starting_learning_rate = {config.starting_learning_rate}",
        )
    if config.checkpoint_interval == 0:
        yield Problem("checkpoint_interval", "0", "must be -1 (at the end only) or at least 1")


def _ranks(config: RunConfig, ranks: int) -> Iterator[Problem]:
    if ranks % config.total_shards:
        yield Problem("ranks", str(ranks), f"must be a multiple of the {config.total_shards} shards of dc_num_shards")
        return
    batch = config.local_batch_size * (ranks // config.total_shards)
    short = [
        f"{number} {name} volumes"
        for name, number in (("training", config.n_training), ("validation", config.n_validation))
        if batch > number
    ]
    if short:
        yield Problem(
            "local_batch_size",
            str(config.local_batch_size),
            f"the global batch of {batch} on {count(ranks, 'rank')} exceeds the {' and the '.join(short)}",
        )
