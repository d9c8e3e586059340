"""Plausible results of trainings, as the training stage publishes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scaffold.config import RunConfig, config_id, dataset_name, must_match, resume_identity, training_identity
from scaffold.records import COLUMNS

SMALL = {
    "problem_scale": 5,
    "unet_bottleneck_dim": 3,
    "unet_base_channels": 8,
    "n_categories": 3,
    "n_instances_used_per_fractal": 24,
    "local_batch_size": 2,
}


@dataclass
class Training:
    """The files of one training; edit ``result``, ``stats`` or ``predictions``, then ``publish``."""

    directory: Path
    result: dict[str, Any]
    stats: pd.DataFrame
    predictions: dict[str, np.ndarray] = field(default_factory=dict)

    def publish(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "result.json").write_text(json.dumps(self.result))
        self.stats.to_csv(self.directory / "train_stats.csv", index=False)
        np.savez(self.directory / "predictions.npz", **self.predictions)
        return self.directory


def make_stats(epochs: int, rng: np.random.Generator, target: float, epoch_s: float, measured: bool) -> pd.DataFrame:
    epoch = np.arange(1, epochs + 1)
    progress = epoch / epochs
    val_dice = (target + 0.004) * progress**0.35 - 0.05 * (1 - progress) * rng.random(epochs)
    loss = 1.9 * np.exp(-3.2 * progress) + 0.02 * rng.random(epochs)
    val_loss = 1.12 * loss
    duration = epoch_s * (1 + 0.1 * rng.random(epochs))
    steps = 13
    columns = {
        "epoch": epoch,
        "epoch_loss": loss * 17,
        "overall_loss": loss,
        "val_loss_epoch": val_loss * 7,
        "val_loss_avg": val_loss,
        "train_dice": val_dice * 0.97,
        "val_dice": val_dice,
        "epoch_duration": duration,
        "optimizer_steps": np.full(epochs, steps),
        "total_optimizer_steps": steps * epoch,
        "learning_rate": np.full(epochs, 1e-3),
        "train_duration": 0.8 * duration,
        "val_duration": 0.17 * duration,
        "data_duration": 0.09 * duration,
        "checkpoint_stall": 0.02 * duration,
        "minibatch_duration": 0.7 * duration / steps if measured else np.full(epochs, np.nan),
    }
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def make_predictions(rng: np.random.Generator, edge: int, categories: int, n: int = 3) -> dict[str, np.ndarray]:
    """Thin crossing curves for fractals, and a prediction that misses, invents and confuses some pixels."""
    truth = np.zeros((n, edge, edge), np.int16)
    for plane in truth:
        for _ in range(3):
            t = np.linspace(0, 1, 6 * edge)
            wave = 0.5 + 0.42 * np.sin(2 * np.pi * (rng.random() + t * rng.integers(1, 4)))
            rows, columns = (edge * wave).astype(int), (edge * (0.06 + 0.88 * t)).astype(int)
            plane[rows, columns] = rng.integers(1, categories + 1)
    prediction = truth.copy()
    noise = rng.random(truth.shape)
    prediction[noise < 0.05] = 0
    prediction[(noise > 0.97) & (truth > 0)] = 1
    prediction[(noise > 0.996) & (truth == 0)] = 2
    palette = np.vstack([np.zeros(3), rng.random((categories, 3))]).astype(np.float32)
    return {
        "image": palette[truth].transpose(0, 3, 1, 2).astype(np.float32),
        "truth": truth,
        "prediction": prediction,
        "sample_id": np.arange(n) * 11,
        "depth": np.full(n, edge // 2),
        "dice": np.linspace(0.97, 0.91, n),
        "palette": palette,
    }


def make_training(
    directory: Path,
    *,
    seed: int = 1,
    ranks: int = 1,
    epochs: int = 25,
    epoch_s: float = 2.0,
    run: str = "tiny",
    converged: bool = True,
    measured: bool = False,
    resumed_at: tuple[int, ...] = (),
    **settings: Any,
) -> Training:
    config = RunConfig.model_validate({**SMALL, **settings})
    rng = np.random.default_rng(1000 * ranks + seed)
    stats = make_stats(epochs, rng, config.target_dice if converged else 0.7, epoch_s, measured)
    epoch_time = float(stats.epoch_duration.sum())
    stall = float(stats.checkpoint_stall.sum())
    starts = [1, *resumed_at]
    result = {
        "format_version": 1,
        "run": run,
        "ranks": ranks,
        "seed": seed,
        "config": config.model_dump(),
        "must_match": must_match(config),
        "training_identity": training_identity(config),
        "resume_identity": resume_identity(config),
        "dataset": {"name": dataset_name(config), "config_id": config_id(config), "digest": "d1" * 32},
        "converged": converged,
        "epochs": epochs,
        "val_dice": float(stats.val_dice.iloc[-1]),
        "val_loss_avg": float(stats.val_loss_avg.iloc[-1]),
        "epoch_time_s": epoch_time,
        "checkpoint_stall_s": stall,
        "minibatch_time_s": 0.07 if measured else None,
        "total_optimizer_steps": 13 * epochs,
        "warmup_s": 1.5,
        "class_weights_s": 0.2,
        "build_s": 0.3,
        "lost_s": 4.5 * len(resumed_at),
        "attempts": [
            {"first_epoch": first, "reason": "killed" if i < len(resumed_at) else "done"}
            for i, first in enumerate(starts)
        ],
        "parameters": 90_302,
        "world": {
            "ranks": ranks, "hosts": 1, "backend": "gloo", "device": "Example CPU 9000",
            "device_type": "cpu", "threads": 1,
            "mpi_library": "MPICH 4.3", "launcher": "mpiexec",
        },
        "kernels": {
            "calls": {"stem_convolution": {"eager": 9}, "clipped_adam": {"eager": 5}},
            "differing_ranks": [],
            "switches": {},
        },
        "provenance": {"commit": "0123456789ab", "versions": {"torch": "2.13.0", "numpy": "2.4.6"}},
    }  # fmt: skip
    return Training(directory, result, stats, make_predictions(rng, config.vol_size, config.n_categories))


@pytest.fixture
def training(tmp_path: Path) -> Callable[..., Training]:
    """Return a maker of trainings: ``training(seed=2, ranks=4, ...).publish()``."""

    def make(**arguments: Any) -> Training:
        run, ranks, seed = arguments.get("run", "tiny"), arguments.get("ranks", 1), arguments.get("seed", 1)
        return make_training(tmp_path / "runs" / run / f"ranks{ranks}" / f"seed{seed}", **arguments)

    return make


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the figures that a test draws, laid out, while they are saved as usual."""
    from scaffold.reporting import style

    figures: list[Any] = []
    save = style.save

    def keep(drawing: Any, path: Path) -> None:
        save(drawing, path)
        figures.append(drawing)

    monkeypatch.setattr(style, "save", keep)
    return figures
