"""The loop over epochs, until the target Dice is met.

What is timed, and what is not, is the benchmark's definition: an epoch's time holds loading, training
steps, reductions, validation and the scheduler; the statistics file and checkpoints come after it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from scaffold.config import RunConfig
from scaffold.errors import Ending, IncurableError, StoppedError
from scaffold.parallel.launch import Context
from scaffold.parallel.stopping import Request, StopRequests
from scaffold.progress import track
from scaffold.records import Row
from scaffold.training.checkpoint import Checkpoints
from scaffold.training.evaluation import evaluate
from scaffold.training.profiling import StepProfiler
from scaffold.training.replicas import unwrapped
from scaffold.training.state import State, capture
from scaffold.training.statistics import Statistics
from scaffold.training.step import Batch, Learner, train_step
from scaffold.training.timing import StepTimer

Loader = DataLoader[dict[str, torch.Tensor]]

log = logging.getLogger("scaffold")


@dataclass
class Training:
    """A training under way on this rank.

    Attributes:
        config: the run.
        context: this rank.
        learner: network, optimizer and what belongs to them.
        batches: of the training split; its sampler has ``set_epoch``.
        validation: batches of this rank's share of the validation split.
        statistics: the epochs so far.
        checkpoints: where they are saved.
        stops: requests to stop.
        profiler: of training steps.
        facts: what each checkpoint also holds.
        before_save: called on rank 0 before each checkpoint; may refuse by raising.
        saved: the last epoch handed over to ``checkpoints``; the same on every rank.
        on_disk: the last epoch whose checkpoint is known to be on disk.
    """

    config: RunConfig
    context: Context
    learner: Learner
    batches: Loader
    validation: Loader
    statistics: Statistics
    checkpoints: Checkpoints
    stops: StopRequests
    profiler: StepProfiler
    facts: dict[str, Any]
    before_save: Callable[[], None]
    saved: int = 0
    on_disk: int = 0

    @property
    def converged(self) -> bool:
        """Whether the target is met (by an epoch; a target of 0 wants one too)."""
        return self.statistics.epoch > 0 and self.statistics.val_dice >= self.config.target_dice

    @property
    def used_up(self) -> bool:
        """Whether ``epochs`` are trained."""
        return self.config.epochs != -1 and self.statistics.epoch >= self.config.epochs

    def run(self) -> Ending:
        """Train until the target is met or the epochs are used up; return which. Collective.

        Afterwards the last epoch's checkpoint is on disk.

        Raises:
            IncurableError: the loss is not finite; neither a row nor a checkpoint was made of it.
            StoppedError: a signal or the time limit; the last checkpoint is on disk.
            RankError: a checkpoint or the statistics could not be written.
        """
        statistics = self.statistics
        self.saved = self.on_disk = statistics.epoch
        while not (self.converged or self.used_up):
            request = self.stops.settle(needed_s=self._longest_epoch())
            if request is not None:
                self._finish()
                raise self._stopped(request)
            outcome = self._epoch(statistics.epoch + 1)
            if isinstance(outcome, Request):
                self._wait_for_disk()
                raise self._stopped(outcome)
            row = outcome
            statistics.rows.append(row)
            self._tell(row)
            if self.config.checkpoint_interval > 0 and row.epoch % self.config.checkpoint_interval == 0:
                self._save()
            self._write_statistics()
        self._finish()
        return Ending.CONVERGED if self.converged else Ending.USED_UP

    def _epoch(self, epoch: int) -> Row | Request:
        """Train and validate once; return the row, or the request for which the epoch was abandoned."""
        learning_rate = float(self.learner.optimizer.param_groups[0]["lr"])
        start = time.perf_counter()
        sums, steps, waited, timer, request = self._train(epoch)
        if request is not None:
            return request
        loss_sum, dice_sum, samples = self._total(*sums)
        trained = time.perf_counter()
        score = evaluate(self.learner, self.validation)
        val_dice_sum, val_loss_sum, val_samples = self._total(score.dice_sum, score.loss_sum, score.samples)
        validated = time.perf_counter()
        self._refuse_non_finite(epoch, loss_sum, val_loss_sum, val_dice_sum)
        if self.learner.scheduler is not None:
            self.learner.scheduler.step()
        end = time.perf_counter()
        return Row(
            epoch=epoch,
            epoch_loss=loss_sum,
            overall_loss=loss_sum / samples,
            val_loss_epoch=val_loss_sum,
            val_loss_avg=val_loss_sum / val_samples,
            train_dice=dice_sum / samples,
            val_dice=val_dice_sum / val_samples,
            epoch_duration=end - start,
            optimizer_steps=steps,
            total_optimizer_steps=self.statistics.total_optimizer_steps + steps,
            learning_rate=learning_rate,
            train_duration=trained - start,
            val_duration=validated - trained,
            data_duration=waited,
            checkpoint_stall=0.0,
            minibatch_duration=timer.median(self.context),
        )

    def _train(self, epoch: int) -> tuple[tuple[float, float, int], int, float, StepTimer, Request | None]:
        """Take all steps of an epoch.

        Returns:
            (sums of loss, Dice and samples), steps, seconds spent waiting for data, the step times, and
            the request to stop, if one arrived.
        """
        self.batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        unwrapped(self.learner.model).train()
        totals = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        timer = StepTimer(self.context.device)
        waits: list[float] = []
        samples = steps = 0
        request = None
        for batch in track(_timed(self.batches, waits), f"epoch {epoch}", len(self.batches), self.context.rank):
            request = self.stops.poll()
            if request is not None:
                break
            with timer.step(is_full=len(batch["mask"]) == self.config.local_batch_size):
                result = train_step(self.learner, batch)
            totals += torch.stack((result.loss.double(), result.dice.double())) * result.samples
            samples += result.samples
            steps += 1
            self.profiler.step()
        loss_sum, dice_sum = totals.tolist()
        return (loss_sum, dice_sum, samples), steps, math.fsum(waits), timer, request

    def _total(self, first: float, second: float, samples: int) -> tuple[float, float, int]:
        """Add over all ranks, exactly rounded, so that the sum does not depend on an order of adding."""
        parts = self.context.exchange((first, second, samples))
        firsts, seconds, counts = zip(*parts, strict=True)
        return _sum(firsts), _sum(seconds), sum(counts)

    def _refuse_non_finite(self, epoch: int, *sums: float) -> None:
        if not all(math.isfinite(value) for value in sums):
            names = ("training loss", "validation loss", "validation Dice")
            bad = ", ".join(f"{name} {value}" for name, value in zip(names, sums, strict=True))
            raise IncurableError(f"epoch {epoch}: a sum is not finite ({bad}); lower starting_learning_rate")

    def _save(self) -> None:
        """Save a checkpoint, and add what training waited for it to the last row."""
        row = self.statistics.rows[-1]
        start = time.perf_counter()
        self.checkpoints.save(self._capture)
        row.checkpoint_stall += time.perf_counter() - start
        # A save begins by waiting for the one before.
        self.on_disk, self.saved = self.saved, row.epoch

    def _capture(self) -> State:
        self.before_save()
        row = self.statistics.rows[-1]
        facts = {
            **self.facts,
            "epoch": row.epoch,
            "val_loss_avg": row.val_loss_avg,
            "val_dice": row.val_dice,
            "rows": self.statistics.to_json(),
        }
        return capture(self.learner, facts)

    def _finish(self) -> None:
        """Bring the last finished epoch to disk, wherever it stands."""
        if self.saved < self.statistics.epoch:
            self._save()
        self._wait_for_disk()
        self._write_statistics()

    def _wait_for_disk(self) -> None:
        self.checkpoints.finish()
        self.on_disk = self.saved

    def _write_statistics(self) -> None:
        with self.context.together("writing train_stats.csv"):
            if self.context.rank == 0:
                self.statistics.write()

    def _longest_epoch(self) -> float:
        """Return the most that an epoch and its checkpoint took so far, seconds; 0 before the first."""
        return max((row.epoch_duration + row.checkpoint_stall for row in self.statistics.rows), default=0.0)

    def _stopped(self, request: Request) -> StoppedError:
        lost = self.statistics.epoch - self.saved
        redo = f"; {lost} finished epochs are lost, since checkpoint_interval is not 1" if lost else ""
        told = f"stopped: {request.name}, after epoch {self.saved}{redo}; run the same command again to continue"
        return StoppedError(told, request.ending)

    def _tell(self, row: Row) -> None:
        if self.context.rank == 0:
            log.info(
                "epoch %d: loss %.4f, validation loss %.4f, Dice %.4f, validation Dice %.4f of %g; %.2f s, lr %.3g",
                row.epoch, row.overall_loss, row.val_loss_avg, row.train_dice, row.val_dice,
                self.config.target_dice, row.epoch_duration, row.learning_rate,
            )  # fmt: skip


def _timed(batches: Loader, waits: list[float]) -> Iterator[Batch]:
    """Yield ``batches``, appending to ``waits`` how long each was waited for, seconds."""
    start = time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - start)
        yield batch
        start = time.perf_counter()


def _sum(values: tuple[float, ...]) -> float:
    # fsum refuses to add infinities of both signs, which a diverged loss can well be.
    return math.fsum(values) if all(math.isfinite(value) for value in values) else math.nan
