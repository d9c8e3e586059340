"""One training from start to published result, on every rank of a job.

The order: data set, work folder, network, checkpoint, class weights, warm-up, epochs, outputs. What
ends it is recorded in the work folder, and every rank leaves with the same exit code.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scaffold import atomic
from scaffold.config import Job, RunConfig, config_id, resume_identity, training_identity
from scaffold.config.identity import dataset_settings
from scaffold.dataset.reader import Samples
from scaffold.errors import Ending, ExitCode, IncurableError, ScaffoldError, StoppedError, UserError
from scaffold.model.unet import build as build_network
from scaffold.parallel import ending
from scaffold.parallel.alarm import Alarm, Failure
from scaffold.parallel.devices import refuse_missing_gpu
from scaffold.parallel.launch import Context, is_lost_rank, lost_rank
from scaffold.parallel.stopping import StopRequests
from scaffold.parallel.team import RankError
from scaffold.training import class_weights, predictions, restart, result, served, tensorfile
from scaffold.training.checkpoint import Checkpoints
from scaffold.training.determinism import seed_everything, set_determinism
from scaffold.training.graph import StepGraphs
from scaffold.training.loaders import start_loader_server
from scaffold.training.loop import Training
from scaffold.training.optimizer import build_optimizer, build_scheduler
from scaffold.training.profiling import StepProfiler
from scaffold.training.replicas import replicate, unwrapped
from scaffold.training.restart import Command
from scaffold.training.samplers import TrainingSampler, ValidationSampler, loader
from scaffold.training.state import State, restore
from scaffold.training.statistics import Statistics
from scaffold.training.step import Compute, Learner
from scaffold.training.warmup import warm_up
from scaffold.training.workdir import WorkDir, work_path

STATISTICS = "train_stats.csv"

_AGREED = (RankError, StoppedError, IncurableError)
"""Errors that every rank raises at the same point; any other is one rank's own."""

_FROM_LOADER = "Caught DamagedFileError in DataLoader worker"

log = logging.getLogger("scaffold")


class InterruptedRankError(StoppedError):
    """A person insisted (a second Ctrl-C) on this rank; the others may know nothing of it."""


class DamagedSampleError(ScaffoldError):
    """A file of the data set cannot be trusted, as a loader process found."""

    exit_code = ExitCode.DAMAGED


@dataclass(frozen=True)
class Data:
    """The two splits of the data set."""

    training: Samples
    validation: Samples


Build = Callable[[Context, Job, Data], Learner]
"""What makes the learner of a training; a benchmark has others than :func:`build_learner`."""


def build_learner(context: Context, job: Job, data: Data) -> Learner:
    """Return the untrained network and its optimizer, on the device; not yet replicated."""
    config = job.config
    network = build_network(config)
    network.to(context.device)
    optimizer = build_optimizer(config, network.parameters())
    return Learner(
        model=network,
        optimizer=optimizer,
        scheduler=build_scheduler(config, optimizer),
        weights=torch.ones(data.training.n_classes, device=context.device),
        compute=Compute(context.device, data.training.palette.to(context.device), config.torch_amp),
    )


def run(
    context: Context, job: Job, command: Command, deadline: float | None = None, build: Build = build_learner
) -> ExitCode:
    """Train ``job`` and publish its result, or say why not; never raises. Collective.

    Ends the process where this rank of several fails alone.

    Args:
        context: this rank, one of ``job.ranks``.
        job: what to train.
        command: where the data are, where results go (the work folder lies below), and how it was started.
        deadline: value of ``time.monotonic()`` by which to stop, or None.
        build: makes the learner.

    Returns:
        What the process ends with, the same on every rank.
    """
    alarm = Alarm(context)
    record = _Record()
    alarm.last_act = record.failed
    stops = StopRequests(context, deadline)
    try:
        with stops.listening():
            with context.together("looking for a GPU"):
                refuse_missing_gpu(context.device, job.resources.gpus)
            data = open_data(context, job, command.meta)
            record.work = open_work(context, job, command.output)
            with context.together("writing restart.sh"):
                if record.work is not None:
                    restart.write(record.work.path, context, job, command)
            _train_and_publish(context, job, data, command.output, record, stops, build)
    except BaseException as raised:
        if isinstance(raised, KeyboardInterrupt):
            # A third Ctrl-C must not break the end that the second began.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        error = _worded(raised)
        failure = Failure.of(context, error)
        is_own = error.defect is not None if isinstance(error, RankError) else failure.exit_code == ExitCode.INTERNAL
        if is_own:
            traceback.print_exception(raised)
        if type(error) in _AGREED:
            alarm.off()
            record.failed(failure)
            if context.rank == 0:
                print(f"scaffold train: {failure.message}", file=sys.stderr, flush=True)
            return ExitCode(failure.exit_code)
        failure = alarm.raise_alarm(failure)
        if context.size > 1:
            # The others are gone or stuck: nothing collective, MPI's own end included, would come to an end.
            ending.abort(context, failure.exit_code)
        return ExitCode(failure.exit_code)
    alarm.off()
    return ExitCode.DONE


class _Record:
    """What is left to do when a training fails; filled as it comes to own something."""

    def __init__(self) -> None:
        self.work: WorkDir | None = None
        self.checkpoints: Checkpoints | None = None

    def failed(self, failure: Failure) -> None:
        """Bring a checkpoint under way to disk and note why the attempt ended. Not collective."""
        if self.checkpoints is not None:
            self.checkpoints.let_finish()
        if self.work is not None:
            try:
                self.work.close(failure.ending, failure.message, failure.exit_code)
            except ScaffoldError as error:
                log.warning("could not record how this attempt ended: %s", error)


def open_data(context: Context, job: Job, meta: Path) -> Data:
    """Open both splits, and make sure that they are the job's and the same on every rank. Collective.

    Raises:
        RankError: a file is missing or damaged, the data set has other settings, or ranks see
            different data.
    """
    with context.together("opening the data set"):
        data = Data(Samples(meta, "training"), Samples(meta, "validation"))
        _check_settings(data.training, job, meta)
    digests = context.exchange((data.training.ids_digest(), data.validation.ids_digest()))
    with context.together("comparing the data set"):
        if digests[context.rank] != digests[0]:
            raise UserError(
                f"{meta} is not the same here as on rank 0: {context.hosts[context.rank]} and {context.hosts[0]}"
                " see different data sets; is the file system shared?"
            )
    return data


def open_work(context: Context, job: Job, output: Path) -> WorkDir | None:
    """Lock the job's work folder; return it on rank 0, None elsewhere. Collective.

    Raises:
        RankError: another training runs there, or an earlier attempt failed for good.
    """
    work = None
    with context.together("opening the work folder"):
        if context.rank == 0:
            work = WorkDir(work_path(output, resume_identity(job.config)), training_identity(job.config))
            work.attempts.current.world = context.describe()
    return work


def _train_and_publish(
    context: Context, job: Job, data: Data, output: Path, record: _Record, stops: StopRequests, build: Build
) -> None:
    work = record.work
    config, folder = job.config, work_path(output, resume_identity(job.config))
    setup: dict[str, float] = {}
    with _timed(setup, "build_s"):
        seed_everything(job.seed)
        set_determinism(config.more_determinism)
        learner = build(context, job, data)
    checkpoints = record.checkpoints = Checkpoints(folder / "checkpoints", context, config.async_save)
    statistics = _resume(context, job, learner, checkpoints, folder, work)
    replicas = {"replica": context.rank, "replicas": context.size}
    if config.dataloader_num_workers:
        start_loader_server()
    batch, workers, device = config.local_batch_size, config.dataloader_num_workers, context.device
    order = TrainingSampler(len(data.training), **replicas, seed=job.seed)
    share = ValidationSampler(len(data.validation), **replicas)
    with StepProfiler(config, context, folder / "traces") as profiler:
        training = Training(
            config=config,
            context=context,
            learner=learner,
            batches=loader(data.training, order, batch, workers, device),
            validation=loader(data.validation, share, batch, workers, device),
            statistics=statistics,
            checkpoints=checkpoints,
            stops=stops,
            profiler=profiler,
            facts=_origin(job),
            before_save=work.lock.check if work is not None else lambda: None,
        )
        if training.converged or training.used_up:
            log.info("nothing to train: epoch %d, validation Dice %.4f", statistics.epoch, statistics.val_dice)
            ending = Ending.PUBLISHED
        else:
            _get_ready(training, job, data, setup)
            if work is not None:
                work.attempts.current.setup = {name: round(seconds, 6) for name, seconds in setup.items()}
                work.attempts.write()
            try:
                ending = training.run()
            finally:
                if work is not None:
                    work.attempts.reached(training.on_disk)
            kernels = served.gather(context)
            if work is not None:
                work.attempts.current.kernels = kernels
                work.attempts.current.cuda_graph = training.learner.graphs.status()
            # Predictions want the memory.
            training.learner.graphs.release()
    # Rank 0 reads masks and predicts, which at a large scale takes longer than a collective may.
    with context.together("publishing the result"), context.led_by_rank_0("publishing"):
        if work is not None:
            work.attempts.end(ending, str(ending), ExitCode.DONE)
            _publish(output, job, data, training, work)
            # Whatever befalls the ranks from here on, this attempt has ended well.
            work.close(ending, str(ending), ExitCode.DONE)


def _resume(
    context: Context, job: Job, learner: Learner, checkpoints: Checkpoints, folder: Path, work: WorkDir | None
) -> Statistics:
    """Bring the learner to where the last checkpoint left it; return the epochs so far. Collective."""
    state = checkpoints.load()
    if state is not None and goes_beyond(state, job.config):
        if context.rank == 0:
            log.warning(
                "the checkpoint of epoch %d is past the end that the study now sets: training afresh", state.epoch
            )
        checkpoints.remove()
        if work is not None:
            work.attempts.forget_earlier()
        state = None
    with context.together("resuming"):
        if state is not None:
            _check_origin(state, job, folder)
            restore(learner, state)
        statistics = Statistics(folder / STATISTICS, [] if state is None else state.facts["rows"])
        if work is not None:
            statistics.recover_stall()
            work.attempts.resume_from(statistics.epoch)
            work.check_progress()
            if state is not None:
                log.info("continuing after epoch %d, validation Dice %.4f", statistics.epoch, statistics.val_dice)
    return statistics


def goes_beyond(state: State, config: RunConfig) -> bool:
    """Return whether a training with ``config`` would have ended before the epoch of ``state``.

    That is so after ``target_dice`` or ``epochs`` was lowered: counting the later epochs would report
    a longer time to the target than was needed.
    """
    earlier = Statistics(Path(), state.facts["rows"]).rows[:-1]
    met = any(row.val_dice >= config.target_dice for row in earlier)
    return met or (config.epochs != -1 and state.epoch > config.epochs)


def _get_ready(training: Training, job: Job, data: Data, setup: dict[str, float]) -> None:
    """Do what an untimed start does: replicate the network, weigh the classes, warm up. Collective."""
    context, learner = training.context, training.learner
    served.warn_of_unknown_switches(context)
    with _timed(setup, "build_s"):
        if context.data_group is not None:
            replica = replicate(unwrapped(learner.model), context.data_group)
            learner = dataclasses.replace(learner, model=replica)
        graphs = StepGraphs.of(learner.model, learner.optimizer, context.device)
        learner = dataclasses.replace(learner, graphs=graphs)
    with _timed(setup, "class_weights_s"):
        fraction = training.config.ce_weight_sample_fraction
        weights = class_weights.estimate(data.training, fraction, context, context.rank, context.size)
        learner.weights.copy_(weights)
    training.learner = learner
    steps = training.config.warmup_batches
    if steps and context.rank == 0:
        log.info("warming up with up to %d training and validation steps, undone before the clock starts", steps)
    with _timed(setup, "warmup_s"):
        warm_up(learner, training.batches, training.validation, steps, context)
    served.tell(served.gather(context), context)


def _publish(output: Path, job: Job, data: Data, training: Training, work: WorkDir) -> None:
    """Write the outputs, ``result.json`` last, so that it never stands beside those of another training. On rank 0."""
    (output / "result.json").unlink(missing_ok=True)
    network = unwrapped(training.learner.model)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    atomic.write_yaml(output / "config.yaml", job.resolved())
    training.statistics.write(output / STATISTICS)
    tensorfile.write(output / "model.safetensors", weights, {"training_identity": training_identity(job.config)})
    predictions.write(output / "predictions.npz", training.learner, data.validation)
    content = result.build(
        job,
        training.statistics,
        work.attempts,
        training.converged,
        sum(parameter.numel() for parameter in network.parameters()),
        {"config_id": data.training.meta.config_id, "digest": data.training.meta.digest},
    )
    result.write(output / "result.json", content)
    log.info("published %s", output / "result.json")


def _check_settings(samples: Samples, job: Job, meta: Path) -> None:
    wanted = dataset_settings(job.config)
    if samples.meta.config_id == config_id(job.config):
        return
    found = samples.meta.settings
    differing = [
        f"{key} is {found.get(key)!r}, wanted {wanted.get(key)!r}"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
    raise UserError(f"{meta} is not the data set of run {job.run}: {'; '.join(differing)}")


def _origin(job: Job) -> dict[str, Any]:
    """Return what a checkpoint must have been made with to be continued by ``job``."""
    return {"resume_identity": resume_identity(job.config), "ranks": job.ranks, "seed": job.seed}


def _check_origin(state: State, job: Job, folder: Path) -> None:
    wanted = _origin(job)
    wrong = [
        f"{key} {state.facts.get(key)} instead of {value}"
        for key, value in wanted.items()
        if state.facts.get(key) != value
    ]
    if wrong:
        raise UserError(
            f"the checkpoint in {folder} belongs to another training ({'; '.join(wrong)});"
            f" remove it with: scaffold clean-run {folder}"
        )


def _worded(error: BaseException) -> BaseException:
    """Return ``error`` as the user should see it."""
    if isinstance(error, KeyboardInterrupt):
        return InterruptedRankError("interrupted; run the same command again to continue from the last checkpoint")
    if is_lost_rank(error):
        return lost_rank(error)
    if isinstance(error, RuntimeError) and _FROM_LOADER in str(error):
        last = str(error).strip().splitlines()[-1]
        return DamagedSampleError(last.partition("DamagedFileError: ")[2])
    return error


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
