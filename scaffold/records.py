"""What one training records of itself: the rows of ``train_stats.csv`` and the content of ``result.json``.

The training writes these and reports read them, each through the definitions here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, computed_field

from scaffold.config import RunConfig

FORMAT_VERSION = 1

_Seconds = Annotated[float, Field(ge=0)]


@dataclass
class Row:
    """One epoch: a row of ``train_stats.csv``. All times in seconds, of rank 0's clock.

    Attributes:
        epoch: 1-based.
        epoch_loss: sum over all training samples of the loss of their batch.
        overall_loss: ``epoch_loss`` per sample.
        val_loss_epoch: sum over all validation samples of the loss of their batch.
        val_loss_avg: ``val_loss_epoch`` per sample; decides which checkpoint is best.
        train_dice: mean foreground soft Dice.
        val_dice: mean foreground hard Dice; decides convergence.
        epoch_duration: loading, steps, reductions, validation and scheduler; no checkpoint.
        optimizer_steps: steps of this epoch.
        total_optimizer_steps: steps since the run began, over all attempts.
        learning_rate: that the epoch was trained with.
        train_duration: the part of ``epoch_duration`` spent on training batches.
        val_duration: the part spent on validation.
        data_duration: the part of ``train_duration`` spent waiting for the loader.
        checkpoint_stall: that training waited for this epoch's checkpoint, after ``epoch_duration``.
        minibatch_duration: median over the epoch's full batches of the slowest rank's time; None
            without a full batch.
    """

    epoch: int
    epoch_loss: float
    overall_loss: float
    val_loss_epoch: float
    val_loss_avg: float
    train_dice: float
    val_dice: float
    epoch_duration: float
    optimizer_steps: int
    total_optimizer_steps: int
    learning_rate: float
    train_duration: float
    val_duration: float
    data_duration: float
    checkpoint_stall: float
    minibatch_duration: float | None


COLUMNS = tuple(field.name for field in fields(Row))
LLNL_COLUMNS, OUR_COLUMNS = COLUMNS[:10], COLUMNS[10:]
"""The columns of LLNL's ``train_stats.csv``, in its order, and those that follow."""

TIME_COLUMNS = tuple(name for name in COLUMNS if name.endswith(("_duration", "_stall")))


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class DatasetStamp(_Record):
    """Which data a training read.

    Attributes:
        name: the data set's folder.
        config_id: digest of its settings.
        digest: digest of its bytes; equal digests are equal data.
    """

    name: str
    config_id: str
    digest: str


class World(_Record):
    """What a training ran on. ``hosts`` is the number of machines, ``threads`` is per rank."""

    ranks: int
    hosts: int
    backend: str
    device: str
    device_type: str
    threads: int
    launcher: str | None
    mpi_library: str | None


class Kernels(_Record):
    """Which implementations served the calls of the kernels in a training.

    Attributes:
        calls: of rank 0, by operation and implementation; warm-up and validation count too. A call that a CUDA
            graph replays counts once, when it is captured.
        differing_ranks: ranks that some other set of implementations served, ascending. Their results differ
            in rounding, and the slowest sets the pace of all.
        switches: variables that turn implementations on or off, as they were set on rank 0; empty in older records.
    """

    calls: dict[str, dict[str, int]]
    differing_ranks: list[int]
    switches: dict[str, str] = {}


class Attempt(_Record):
    """One process of a training: the first, or one that resumed it after a kill or a time limit.

    What else the training notes of it stands in the file too; reports need no more than this.

    Attributes:
        reason: why it ended; None for the one that published while it was still running.
        first_epoch: the first epoch that it trained, 1-based; None if it was stopped before.
    """

    model_config = ConfigDict(extra="allow")

    reason: str | None
    first_epoch: int | None


class Result(_Record):
    """The content of ``result.json``. Times are wall time in seconds.

    Attributes:
        epoch_time_s: sum of ``epoch_duration``: what LLNL's figure of merit is the reciprocal of.
        checkpoint_stall_s: how long checkpoints held the training loop up.
        minibatch_time_s: median step time, slowest rank; None where it was not measured.
        warmup_s: of the last attempt that trained, as the other times of its set-up; None if it published only.
        lost_s: wall time of work that a kill undid and a later attempt did again.
        parameters: of the network.
        world: what the last attempt that trained ran on.
        cuda_graph: whether its steps were replayed from CUDA graphs, for "training" and "validation":
            "captured", "not used", or "off: " and why; None if it is not known.
        kernels: what served that attempt; None if it was killed before it could note it.
    """

    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    run: str
    ranks: int
    seed: int
    config: dict[str, Any]
    must_match: dict[str, Any]
    training_identity: str
    resume_identity: str
    dataset: DatasetStamp
    converged: bool
    epochs: Annotated[int, Field(ge=0)]
    val_dice: float
    val_loss_avg: float | None
    epoch_time_s: _Seconds
    checkpoint_stall_s: _Seconds
    minibatch_time_s: _Seconds | None
    total_optimizer_steps: int
    warmup_s: _Seconds | None
    class_weights_s: _Seconds | None
    build_s: _Seconds | None
    lost_s: _Seconds
    attempts: Annotated[list[Attempt], Field(min_length=1)]
    parameters: int
    world: World
    cuda_graph: dict[str, str] | None = None
    kernels: Kernels | None = None
    provenance: dict[str, Any]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def time_to_target_s(self) -> float | None:
        """Time of the epochs and of what checkpoints stalled training; None unless the target was met."""
        return self.epoch_time_s + self.checkpoint_stall_s if self.converged else None

    @property
    def settings(self) -> RunConfig:
        """The settings of the training, typed."""
        return RunConfig.model_validate(self.config)

    @property
    def commit(self) -> str:
        """The commit of the source tree that trained."""
        return str(self.provenance.get("commit", "unknown"))

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step over all ranks."""
        settings = self.settings
        return settings.local_batch_size * self.ranks // settings.total_shards

    @property
    def resumed_at(self) -> list[int]:
        """The epochs at which attempts after the first began, ascending."""
        starts = {attempt.first_epoch for attempt in self.attempts[1:] if attempt.first_epoch is not None}
        return sorted(epoch for epoch in starts if epoch <= self.epochs)
