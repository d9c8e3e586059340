"""``result.json``: everything that a report or a comparison needs to know of one training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaffold import atomic, provenance
from scaffold.config import Job, dataset_name, must_match, resume_identity, training_identity
from scaffold.records import FORMAT_VERSION, Result
from scaffold.training.attempts import Attempt, Attempts
from scaffold.training.statistics import Statistics


def build(
    job: Job, statistics: Statistics, attempts: Attempts, converged: bool, parameters: int, dataset: dict[str, Any]
) -> Result:
    """Return the content of ``result.json``.

    ``lost_s`` is the wall time of earlier attempts less what of it counts. The set-up times,
    ``world``, ``kernels`` and ``cuda_graph`` are those of the last attempt that trained.

    Args:
        job: what was trained.
        statistics: all its epochs.
        attempts: the record, whose last entry is closed.
        converged: whether the target was met.
        parameters: number of parameters of the network.
        dataset: its ``config_id`` and ``digest``.
    """
    rows = statistics.rows
    trained = _last_that_trained(attempts)
    setup = trained.setup or {}
    return Result.model_validate(
        {
            "format_version": FORMAT_VERSION,
            "run": job.run,
            "ranks": job.ranks,
            "seed": job.seed,
            "config": job.config.model_dump(),
            "must_match": must_match(job.config),
            "training_identity": training_identity(job.config),
            "resume_identity": resume_identity(job.config),
            "dataset": {"name": dataset_name(job.config), **dataset},
            "converged": converged,
            "epochs": statistics.epoch,
            "val_dice": statistics.val_dice,
            "val_loss_avg": rows[-1].val_loss_avg if rows else None,
            "epoch_time_s": sum(row.epoch_duration for row in rows),
            "checkpoint_stall_s": sum(row.checkpoint_stall for row in rows),
            "minibatch_time_s": statistics.minibatch_time,
            "total_optimizer_steps": statistics.total_optimizer_steps,
            "warmup_s": setup.get("warmup_s"),
            "class_weights_s": setup.get("class_weights_s"),
            "build_s": setup.get("build_s"),
            "lost_s": attempts.lost_s({row.epoch: row.epoch_duration + row.checkpoint_stall for row in rows}),
            "attempts": attempts.to_json(),
            "parameters": parameters,
            "world": trained.world,
            "cuda_graph": trained.cuda_graph,
            "kernels": trained.kernels,
            "provenance": provenance.stamp(),
        }
    )


def write(path: Path, content: Result) -> None:
    """Write ``result.json``; it comes last of a training's outputs.

    Raises:
        WriteError: the file system refused.
    """
    atomic.write_json(path, content.model_dump())


def _last_that_trained(attempts: Attempts) -> Attempt:
    trained = [attempt for attempt in attempts.all if attempt.last_epoch is not None]
    return trained[-1] if trained else attempts.current
