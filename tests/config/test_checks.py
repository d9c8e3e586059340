"""Checks across keys, each on both sides of its boundary."""

from __future__ import annotations

import pytest

from scaffold.config import RunConfig
from scaffold.config.checks import cross_check

# 24 volumes, of which 7 validate and 17 train.
SMALL = {"problem_scale": 5, "unet_bottleneck_dim": 3, "n_categories": 3, "n_instances_used_per_fractal": 24}


def problems(ranks=None, **settings):
    return cross_check(RunConfig.model_validate({**SMALL, **settings}), ranks)


@pytest.mark.parametrize(
    ("good", "bad", "key", "told"),
    [
        # Hazard 60: found before data generation. Hazard 65: no U-Net without a level.
        ({"unet_bottleneck_dim": 4}, {"unet_bottleneck_dim": 5}, "unet_bottleneck_dim", "problem_scale - 1 = 4"),
        ({"group_norm_groups": 64}, {"group_norm_groups": 128}, "group_norm_groups", "unet_base_channels = 64"),
        ({"group_norm_groups": 4}, {"group_norm_groups": 3}, "group_norm_groups", "unet_base_channels = 64"),
        ({"dc_shard_dims": [4, 2, 3]}, {"dc_shard_dims": [2, 2, 3]}, "dc_shard_dims", "2, 3, 4 once"),
        ({"dc_num_shards": [1, 1, 1]}, {"dc_num_shards": [9, 1, 1]}, "dc_num_shards", "2^unet_bottleneck_dim = 8"),
        ({"dc_num_shards": [1, 1, 1]}, {"dc_num_shards": [8, 1, 1]}, "dc_num_shards", "not available"),
        # Hazard 46: a label beyond the mask's type wraps to another class.
        (
            {"storage": {"image": "labels"}, "n_categories": 255},
            {"storage": {"image": "labels"}, "n_categories": 256},
            "n_categories", "at most 255 with storage.image: labels",
        ),
        (
            {"n_instances_used_per_fractal": 3, "val_split": 50}, {"n_instances_used_per_fractal": 2},
            "n_instances_used_per_fractal", "n_fracts_per_vol = 3",
        ),
        (
            {"normalize": 0.5, "variance_threshold": 0.249}, {"normalize": 0.5, "variance_threshold": 0.25},
            "variance_threshold", "normalize^2 = 0.25",
        ),
        ({"val_split": 5}, {"val_split": 4}, "val_split", "4 % of 24 volumes, rounded down, is 0"),
        ({"min_learning_rate": 0.001}, {"min_learning_rate": 0.0011}, "min_learning_rate", "learning_rate = 0.001"),
        ({"checkpoint_interval": 1}, {"checkpoint_interval": 0}, "checkpoint_interval", "-1 (at the end only)"),
        ({"checkpoint_interval": -1}, {"checkpoint_interval": 0}, "checkpoint_interval", "at least 1"),
    ],
)  # fmt: skip
def test_boundary(good, bad, key, told):
    assert problems(**good) == []
    (found,) = problems(**bad)
    assert found.key == key
    assert told in found.allowed


def test_largest_mask_of_each_storage():
    assert problems(n_categories=32767) == []
    with pytest.raises(ValueError, match="n_categories"):
        RunConfig(n_categories=32768)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 8), (8, 1), (2, 4)])
def test_global_batch_against_both_splits(ranks, batch):
    """Hazard 61: a global batch larger than a split trains or validates on nothing."""
    (found,) = problems(ranks, local_batch_size=batch)
    assert found.key == "local_batch_size"
    assert found.allowed == f"the global batch of 8 on {ranks} rank{'s' * (ranks > 1)} exceeds the 7 validation volumes"
    assert problems(ranks, local_batch_size=batch, val_split=34) == []
    (found,) = problems(ranks, local_batch_size=18)
    assert found.allowed.endswith("17 training volumes and the 7 validation volumes")


def test_ranks_are_a_multiple_of_the_shards(monkeypatch):
    """Spatial sharding is refused as yet; its own check is ready for it."""
    from scaffold.config import checks

    sharded = RunConfig.model_validate({**SMALL, "dc_num_shards": [2, 1, 1]})
    monkeypatch.setattr(checks, "_sharding", lambda config: iter(()))
    assert cross_check(sharded, 4) == []
    (found,) = cross_check(sharded, 3)
    assert (found.key, found.allowed) == ("ranks", "must be a multiple of the 2 shards of dc_num_shards")


def test_several_problems_are_all_found():
    wrong = {"unet_bottleneck_dim": 5, "group_norm_groups": 5, "normalize": 0.1, "checkpoint_interval": 0}
    keys = [p.key for p in problems(**wrong, min_learning_rate=1.0)]
    assert keys == [
        "unet_bottleneck_dim", "group_norm_groups", "variance_threshold", "min_learning_rate", "checkpoint_interval",
    ]  # fmt: skip


def test_a_batch_that_is_too_large_is_told_beside_other_problems():
    found = cross_check(RunConfig.model_validate({**SMALL, "local_batch_size": 1000, "unet_bottleneck_dim": 9}), 2)
    assert [problem.key for problem in found] == ["unet_bottleneck_dim", "local_batch_size"]
