"""Names and hashes: each key changes exactly the ones that it should."""

from __future__ import annotations

import typing
from typing import Any, Literal

import pytest

from scaffold.config import (
    RunConfig,
    config_id,
    dataset_name,
    iter_keys,
    keys,
    library_name,
    must_match,
    resume_identity,
    training_identity,
)  # fmt: skip
from scaffold.config.keys import KeyInfo, value_of

KEYS = {dotted: (field, info) for dotted, field, info in iter_keys(RunConfig)}
LISTS = {"dc_num_shards": [2, 1, 1], "dc_shard_dims": [4, 3, 2]}


def changed(dotted: str) -> RunConfig:
    """Return the default config with another valid value of one key, whatever its type."""
    field, _ = KEYS[dotted]
    value = value_of(RunConfig(), dotted)
    other: Any
    if dotted in LISTS:
        other = LISTS[dotted]
    elif typing.get_origin(field.annotation) is Literal:
        other = next(item for item in typing.get_args(field.annotation) if item != value)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = value + 1
    else:
        other = 0.5 * (value or 1.0)
    outer, _, inner = dotted.partition(".")
    config = RunConfig.model_validate({outer: {inner: other} if inner else other})
    assert value_of(config, dotted) != value
    return config


def names(config: RunConfig) -> dict[str, object]:
    return {
        "library": library_name(config),
        "dataset": dataset_name(config),
        "config_id": config_id(config),
        "training": training_identity(config),
        "resume": resume_identity(config),
    }


def moved(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def expected(info: KeyInfo) -> set[str]:
    return {
        "search": {"library", "dataset", "config_id", "training", "resume"},
        "instances": {"dataset", "config_id", "training", "resume"},
        "dataset": {"dataset", "config_id", "training", "resume"},
        "train": {"training"} if info.resume else {"training", "resume"},
        "launch": set(),
    }[info.stage]


@pytest.mark.parametrize("dotted", KEYS)
def test_each_key_moves_exactly_its_names(dotted):
    """Too many: hours of data made again for nothing. Too few: a result under the name of another."""
    info = KEYS[dotted][1]
    assert moved(names(RunConfig()), names(changed(dotted))) == expected(info)


@pytest.mark.parametrize("dotted", KEYS)
def test_must_match_holds_exactly_its_keys(dotted):
    info = KEYS[dotted][1]
    assert (dotted in must_match(RunConfig())) == info.must_match
    assert (must_match(RunConfig()) != must_match(changed(dotted))) == info.must_match


def test_local_statistics_make_the_sharding_part_of_the_comparison():
    """Per-shard normalisation is another network for every cut."""
    whole = must_match(RunConfig(dc_num_shards=[2, 1, 1]))
    assert "dc_num_shards" not in whole
    local = must_match(RunConfig(dc_num_shards=[2, 1, 1], group_norm_statistics="local"))
    assert local["dc_num_shards"] == [2, 1, 1]


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("search", {"library", "dataset", "config_id", "training", "resume"}),
        ("instances", {"dataset", "config_id", "training", "resume"}),
        ("dataset", {"dataset", "config_id", "training", "resume"}),
        ("train", {"training", "resume"}),
    ],
)
def test_code_version_moves_what_the_stage_makes(monkeypatch, stage, told):
    """And no figure of merit is compared with one of another algorithm."""
    before, comparable = names(RunConfig()), must_match(RunConfig())
    monkeypatch.setitem(keys.STAGE_VERSIONS, stage, keys.STAGE_VERSIONS[stage] + 1)
    assert moved(before, names(RunConfig())) == told
    after = must_match(RunConfig())
    assert {name for name in after if after[name] != comparable.get(name)} == {f"version.{stage}"}


def test_every_stage_has_a_code_version():
    assert set(keys.STAGE_VERSIONS) == set(typing.get_args(keys.Stage)) - {"launch"}


def test_names_are_the_same_everywhere():
    """Data sets made at two sites have one name. Only a raised code version or a changed key may move these."""
    assert library_name(RunConfig()) == "scale7-c5-46bbed7a790d"
    assert dataset_name(RunConfig()) == "scale7-n240-dense-0b1cfe6ee0a2"
    assert config_id(RunConfig()) == "0b1cfe6ee0a2"


def test_whole_numbers_do_not_make_another_name():
    """`normalize: 1` and `normalize: 1.0` are the same setting."""
    assert names(RunConfig(normalize=1)) == names(RunConfig(normalize=1.0))


def test_the_target_may_change_between_a_checkpoint_and_its_resume():
    raised = RunConfig(target_dice=0.99, epochs=500)
    assert resume_identity(raised) == resume_identity(RunConfig())
    assert training_identity(raised) != training_identity(RunConfig())
