"""What follows from the keys of a run."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from scaffold.config import RunConfig


def test_reference_problem():
    """The published numbers of LLNL's problem at scale 7 (fractal data specification, section 3)."""
    config = RunConfig()
    assert (config.vol_size, config.point_num, config.unet_layers) == (128, 8192, 4)
    assert (config.instances_used, config.n_volumes, config.n_validation, config.n_training) == (144, 240, 72, 168)
    assert RunConfig(problem_scale=11).point_num == 33_554_432


def test_incomplete_volumes_are_dropped():
    config = RunConfig(n_categories=2, n_instances_used_per_fractal=11, n_fracts_per_vol=4)
    assert (config.instances_used, config.n_volumes) == (8, 4)


def test_validation_is_rounded_down():
    config = RunConfig(n_categories=3, n_instances_used_per_fractal=9, val_split=33)
    assert (config.n_volumes, config.n_validation, config.n_training) == (9, 2, 7)


@pytest.mark.parametrize(
    ("settings", "volume", "per_part", "parts"),
    [
        ({"problem_scale": 4}, 16**3 * 14, 64, 4),
        ({}, 128**3 * 14, 18, 14),
        ({"problem_scale": 9}, 512**3 * 14, 1, 240),
        ({"storage": {"image": "labels"}}, 128**3, 64, 4),
        ({"storage": {"image": "labels"}, "problem_scale": 8}, 256**3, 32, 8),
    ],
)
def test_parts(settings, volume, per_part, parts):
    """Parts of about 512 MiB, at least one sample and at most 64: a function of the content alone."""
    config = RunConfig.model_validate(settings)
    assert (config.volume_bytes, config.volumes_per_part, config.n_parts) == (volume, per_part, parts)
    assert (parts - 1) * per_part < config.n_volumes <= parts * per_part


def test_a_config_cannot_be_changed():
    config = RunConfig()
    with pytest.raises(ValidationError):
        config.seed = 3
    # Mutable defaults are not shared between configs.
    config.dc_num_shards.append(7)
    assert RunConfig().dc_num_shards == [1, 1, 1]


def test_total_shards():
    assert RunConfig(dc_num_shards=[2, 3, 4]).total_shards == 24
