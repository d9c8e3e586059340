"""Import of LLNL's configuration files."""

from __future__ import annotations

import pytest
import yaml

from scaffold.config import Study
from scaffold.config.llnl import DROPPED, convert, looks_like_llnl

LLNL = yaml.safe_load("""
base_run_dir: benchmark_runs
dataset_dir: datasets
fract_base_dir: fractals
job_name: Bench-1
seed: 42
dataloader_num_workers: 1
dc_num_shards: [1, 1, 1]
dc_shard_dims: [2, 3, 4]
checkpoint_interval: -1
n_categories: 5
n_instances_used_per_fractal: 145
problem_scale: 7
unet_bottleneck_dim: 3
n_fracts_per_vol: 3
variance_threshold: 0.15
normalize: 1
val_split: 30
target_dice: 0.95
local_batch_size: 1
optimizer: ADAM
starting_learning_rate: 0.001
min_learning_rate: 0.0001
T_0: 10
T_mult: 2
disable_scheduler: 0
epochs: -1
more_determinism: 0
datagen_from_scratch: 0
train_from_scratch: 1
torch_amp: 1
framework: torch
checkpoint_dir: checkpoints
loss_freq: 1
group_norm_groups: 8
warmup_batches: 64
activation_checkpointing: 0
ce_weight_sample_fraction: 0.1
dataset_reuse_enforce_commit_id: 0
async_save: false
""")


def imported(**changes):
    study, messages = convert({**LLNL, **changes})
    return Study.from_mapping(study, "llnl.yml"), messages


def test_a_file_of_theirs_becomes_a_valid_study():
    study, messages = imported()
    config = study.run("bench_1").config
    assert (config.T_0, config.torch_amp, config.disable_scheduler, config.async_save) == (10, True, False, False)
    assert config.checkpoint_interval == -1
    assert all("dropped" in message for message in messages)


@pytest.mark.parametrize("name", DROPPED)
def test_each_dropped_key_says_what_replaces_it(name):
    """Hazard 55: state split between file and flags; what is not kept must be told, not lost."""
    study, messages = convert({**LLNL, name: "x"})
    told = [message for message in messages if message.startswith(f"{name}: ")]
    assert told == [f"{name}: dropped; {DROPPED[name]}"]
    assert name not in next(iter(study["runs"].values()))


def test_dumped_config_of_theirs_is_taken_too():
    """Their program adds derived keys to the config.yaml that it writes; they are no error."""
    derived = {"command": "benchmark", "vol_size": 128, "point_num": 8192, "unet_layers": 4, "scale": 1, "verbose": 0}
    assert imported(**derived)[0].runs == imported()[0].runs
    assert imported(**derived)[1] == imported()[1]


@pytest.mark.parametrize(
    ("change", "key", "value", "told"),
    [
        ({"optimizer": "adam"}, "optimizer", "RMSProp", "means RMSprop to LLNL's trainer"),
        ({"problem_scale": 7.9}, "problem_scale", 7, "rounded down to 7"),
        ({"checkpoint_interval": 0}, "checkpoint_interval", -1, ""),
        ({"torch_amp": 0}, "torch_amp", False, ""),
        ({"disable_scheduler": True}, "disable_scheduler", True, ""),
    ],
)
def test_what_a_value_means_to_their_program(change, key, value, told):
    study, messages = imported(**change)
    assert getattr(study.run(None).config, key) == value
    assert any(told in message for message in messages)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        # Hazard 57: "no" is true to their program, and a list where one value belongs.
        ({"torch_amp": "no"}, "torch_amp = 'no': must be true or false"),
        ({"disable_scheduler": 2}, "disable_scheduler = 2: must be true or false"),
        ({"local_batch_size": [1, 2]}, "a list; this key takes one value"),
        ({"targt_dice": 0.9}, "targt_dice: unknown key; did you mean target_dice?"),
        ({"problem_scale": float("nan")}, "problem_scale = nan: must be a valid integer"),
        # Hazard 60.
        ({"unet_bottleneck_dim": 7}, "must be at most problem_scale - 1 = 6"),
        # Hazard 61.
        ({"local_batch_size": 100}, "exceeds the 72 validation volumes"),
    ],
)
def test_what_is_wrong_in_theirs_is_wrong_here(change, told):
    with pytest.raises(Exception, match="problem") as caught:
        imported(**change)
    assert told in str(caught.value)


def test_unknown_key_is_told_twice_over():
    assert "colour: not a key of Scaffold; remove it" in convert({**LLNL, "colour": 1})[1]


def test_sharded_runs_keep_their_normalisation():
    """Their statistics are per shard; imported as global ones it would be another network."""
    study, messages = convert({**LLNL, "dc_num_shards": [2, 1, 1]})
    assert study["runs"]["bench_1"]["group_norm_statistics"] == "local"
    assert any("group_norm_statistics" in message for message in messages)
    assert "group_norm_statistics" not in convert(LLNL)[0]["runs"]["bench_1"]


@pytest.mark.parametrize(
    ("job", "run"), [("x", "x"), ("7up", "run_7up"), ("A b-c", "a_b_c"), ("", "llnl"), ("é", "run__"), (None, "llnl")]
)
def test_job_name_becomes_a_valid_run_name(job, run):
    assert list(imported(job_name=job)[0].runs) == [run]


def test_recognised():
    assert looks_like_llnl(LLNL)
    assert not looks_like_llnl({"runs": {}, **LLNL})
    assert not looks_like_llnl({"problem_scale": 7})
    assert not looks_like_llnl(None)
