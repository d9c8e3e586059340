"""Import of LLNL ScaFFold's flat YAML configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scaffold.config.keys import iter_keys
from scaffold.config.run import RunConfig

DROPPED = {
    "base_run_dir": "results always lie under results/; run Snakemake with --directory to put them elsewhere",
    "dataset_dir": "data sets lie under results/datasets/ and are found by their settings",
    "fract_base_dir": "categories lie under results/fractals/ and are found by their settings",
    "job_name": "the name of the entry under `runs:` takes its place",
    "run_dir": "a rerun of the same command finds the run's folder and continues",
    "restart": "a rerun of the same command continues from the last checkpoint",
    "train_from_scratch": "use `scaffold clean-run`, or snakemake --forcerun train",
    "datagen_from_scratch": "use snakemake --forcerun search_categories",
    "dataset_reuse_enforce_commit_id": "each stage's code version is part of the data set's name",
    "framework": "PyTorch is the only framework",
    "dist": "the number of ranks is given by `ranks:` of a run",
    "loss_freq": "it had no effect in LLNL's trainer either",
    "checkpoint_dir": "checkpoints lie in the run's own work/ folder",
}
"""LLNL's keys that have no counterpart -> what replaces them."""

_ADDED_BY_LLNL = frozenset(
    {
        *("command", "config", "verbose", "run_iter", "benchmark_run_dir", "unet_layers", "vol_size"),
        *("point_num", "scheduler_metadata", "machine_name", "datagen_batch_size", "scale", "dc_total_shards"),
    }
)
"""Keys that LLNL's program adds to the config.yaml that it dumps; derived, hence silently left out."""

_FLAGS = ("disable_scheduler", "torch_amp", "more_determinism", "activation_checkpointing", "async_save")
_LLNL_MARKS = ("problem_scale", "unet_bottleneck_dim", "n_categories", "base_run_dir", "target_dice")


def looks_like_llnl(content: Any) -> bool:
    """Return whether ``content`` is a flat mapping of LLNL's keys rather than a study."""
    return isinstance(content, Mapping) and "runs" not in content and sum(k in content for k in _LLNL_MARKS) >= 2


def convert(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Turn LLNL's flat configuration into a study with one run.

    Returns:
        The study, not validated yet, and one message per key that was dropped or changed.
    """
    known = {dotted for dotted, _, _ in iter_keys(RunConfig)}
    keys: dict[str, Any] = {}
    messages = []
    for name, value in content.items():
        if name in DROPPED:
            messages.append(f"{name}: dropped; {DROPPED[name]}")
        elif name in _ADDED_BY_LLNL:
            continue
        elif name in _FLAGS and not isinstance(value, bool) and value in (0, 1):
            keys[name] = bool(value)
        elif name == "optimizer" and value not in ("ADAM", "SGD", "RMSProp"):
            keys[name] = "RMSProp"
            messages.append(f"optimizer: {value!r} means RMSprop to LLNL's trainer; written as RMSProp")
        elif name == "checkpoint_interval" and isinstance(value, int) and value <= 0:
            keys[name] = -1
        elif name == "problem_scale" and isinstance(value, float) and math.isfinite(value):
            keys[name] = int(value // 1)
            messages.append(f"problem_scale: {value} was rounded down to {keys[name]}, as LLNL does")
        else:
            keys[name] = value
            if name not in known:
                messages.append(f"{name}: not a key of Scaffold; remove it")
    # LLNL's statistics are per shard; on one shard the two are the same thing.
    shards = keys.get("dc_num_shards", [1, 1, 1])
    if isinstance(shards, list) and any(count != 1 for count in shards):
        keys["group_norm_statistics"] = "local"
        messages.append("group_norm_statistics: set to local, since LLNL normalises each shard on its own")
    run = str(content.get("job_name") or "llnl").lower()
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in run)
    name = name if name[:1].isalpha() else f"run_{name}"
    return {"runs": {name: keys}}, messages
