"""The loop over epochs, on one rank and a problem of a few thousand voxels."""

import json
import math
import os
import signal
import time

import pytest
import torch
from tiny_learner import CONFIG, TinySamples, tiny_learner, training_batches, validation_batches

from scaffold.errors import IncurableError, StoppedError
from scaffold.parallel.launch import Context
from scaffold.parallel.stopping import StopRequests
from scaffold.records import TIME_COLUMNS
from scaffold.training import checkpoint, loop
from scaffold.training.checkpoint import LAST, Checkpoints
from scaffold.training.loop import Training
from scaffold.training.profiling import StepProfiler
from scaffold.training.state import restore
from scaffold.training.statistics import Statistics


def training(folder, samples=5, deadline=None, **keys):
    """Return a training that continues from the checkpoint in ``folder``, if there is one."""
    config = CONFIG.model_copy(update={"epochs": 2, "local_batch_size": 2, "T_0": 3, "target_dice": 1.0, **keys})
    context, learner = Context(), tiny_learner(torch.float32, T_0=3)
    checkpoints = Checkpoints(folder, context, config.async_save)
    state = checkpoints.load()
    statistics = Statistics(folder / "train_stats.csv", state.facts["rows"] if state else [])
    if state is not None:
        restore(learner, state)
        statistics.recover_stall()
    return Training(
        config=config,
        context=context,
        learner=learner,
        batches=training_batches(samples, 2),
        validation=validation_batches(3, 2),
        statistics=statistics,
        checkpoints=checkpoints,
        stops=StopRequests(context, deadline),
        profiler=StepProfiler(config, context, folder),
        facts={"seed": 1},
        before_save=lambda: None,
    )


def untimed(statistics):
    return [{k: v for k, v in vars(row).items() if k not in TIME_COLUMNS} for row in statistics.rows]


@pytest.fixture
def steps(monkeypatch):
    """Do something at a chosen training step: ``steps[n] = function(learner)``."""
    actions, count, real = {}, [0], loop.train_step

    def train_step(learner, batch):
        count[0] += 1
        if count[0] in actions:
            actions[count[0]](learner)
        return real(learner, batch)

    monkeypatch.setattr(loop, "train_step", train_step)
    return actions


def test_interrupted_and_uninterrupted_trainings_are_equal(tmp_path):
    """Hazard 27: counters, schedule, order or moments that restart show in some column."""
    whole = training(tmp_path / "whole", epochs=4)
    assert whole.run() == "epochs used up"
    training(tmp_path / "halves", epochs=2).run()
    second = training(tmp_path / "halves", epochs=4)
    second.run()
    assert untimed(second.statistics) == untimed(whole.statistics)
    assert second.statistics.total_optimizer_steps == 4 * 3
    assert len({row.overall_loss for row in whole.statistics.rows}) == 4
    assert len({row.learning_rate for row in whole.statistics.rows}) == 3


def test_sums_weigh_batches_by_their_samples(tmp_path, monkeypatch):
    """Hazard 7: a ragged last batch that counts like a full one shifts loss and Dice."""
    losses = iter([1.0, 1.0, 4.0])
    real = loop.train_step

    def train_step(learner, batch):
        result = real(learner, batch)
        return result._replace(loss=torch.tensor(next(losses)), dice=torch.tensor(0.5))

    monkeypatch.setattr(loop, "train_step", train_step)
    made = training(tmp_path, epochs=1)
    made.run()
    row = made.statistics.rows[0]
    assert row.epoch_loss == 2 * 1 + 2 * 1 + 1 * 4
    assert row.overall_loss == row.epoch_loss / 5
    assert row.train_dice == 0.5


def test_a_converged_run_trains_nothing(tmp_path, steps):
    """Hazard 24: one more epoch with each restart."""
    made = training(tmp_path, epochs=-1, target_dice=0.0)
    assert made.run() == "converged"
    assert made.statistics.epoch == 1
    before = (tmp_path / LAST).read_bytes()
    steps[4] = lambda learner: pytest.fail("trained on")
    again = training(tmp_path, epochs=-1, target_dice=0.0)
    assert again.converged
    assert again.run() == "converged"
    assert (tmp_path / LAST).read_bytes() == before


def test_used_up_epochs_train_and_write_nothing(tmp_path):
    """Hazard 25: the resume of a run whose epochs are used up crashed, or overwrote its checkpoint."""
    training(tmp_path).run()
    stamp = (tmp_path / LAST).stat().st_mtime_ns
    table = (tmp_path / "train_stats.csv").read_bytes()
    again = training(tmp_path)
    assert again.run() == "epochs used up"
    assert (tmp_path / LAST).stat().st_mtime_ns == stamp
    assert (tmp_path / "train_stats.csv").read_bytes() == table


def test_zero_epochs_leave_no_checkpoint(tmp_path):
    """Hazard 26: a fresh run of no epochs has nothing to save."""
    made = training(tmp_path, epochs=0)
    assert made.run() == "epochs used up"
    assert not (tmp_path / LAST).exists()
    assert made.statistics.rows == []


@pytest.mark.parametrize("interval", [-1, 2, 3])
def test_the_last_epoch_is_saved_off_the_interval(tmp_path, interval):
    """Hazard 38: converged weights lost because the last epoch is not on the interval."""
    made = training(tmp_path, epochs=5, checkpoint_interval=interval)
    saves = []
    real = made.checkpoints.save
    made.checkpoints.save = lambda capture: saves.append(made.statistics.epoch) or real(capture)
    made.run()
    assert saves == {-1: [5], 2: [2, 4, 5], 3: [3, 5]}[interval]
    assert checkpoint.read(tmp_path / LAST).epoch == made.on_disk == 5


def test_a_non_finite_loss_leaves_neither_row_nor_checkpoint(tmp_path, steps):
    """Hazard 16: the argmax of NaN gives a finite Dice, so only the loss shows it; resumed, it would go on."""

    def poison(learner):
        with torch.no_grad():
            next(learner.model.parameters()).fill_(math.nan)

    steps[8] = poison
    made = training(tmp_path, epochs=4)
    with pytest.raises(IncurableError, match=r"epoch 3: .*training loss nan"):
        made.run()
    # The save of epoch 2 began by waiting for that of epoch 1.
    assert (made.saved, made.on_disk) == (2, 1)
    made.checkpoints.finish()
    assert checkpoint.read(tmp_path / LAST).epoch == 2
    assert made.statistics.epoch == 2
    assert len((tmp_path / "train_stats.csv").read_text().splitlines()) == 3


def test_infinities_of_both_signs_are_refused_too(tmp_path):
    """An exactly rounded sum raises on them, which would look like a defect."""
    made = training(tmp_path)
    assert math.isnan(made._total(math.inf, 0.0, 1)[0])


def test_a_stop_in_mid_epoch_abandons_it_and_loses_nothing_else(tmp_path, steps):
    """A state in mid-epoch cannot be resumed bit for bit, so the epoch is done again."""
    steps[11 + 2] = lambda learner: os.kill(os.getpid(), signal.SIGTERM)
    made = training(tmp_path, samples=22, epochs=4)
    with made.stops.listening(), pytest.raises(StoppedError, match="SIGTERM, after epoch 1;"):
        made.run()
    assert made.statistics.epoch == made.on_disk == 1
    resumed = training(tmp_path, samples=22, epochs=2)
    resumed.run()
    whole = training(tmp_path / "whole", samples=22, epochs=2)
    whole.run()
    assert untimed(resumed.statistics) == untimed(whole.statistics)


def test_a_stop_is_honoured_two_steps_later(tmp_path, steps):
    """Later, the grace period of a scheduler may be over."""
    taken = []
    steps.update({step: lambda learner, step=step: taken.append(step) for step in range(1, 12)})
    steps[4] = lambda learner: os.kill(os.getpid(), signal.SIGUSR1)
    made = training(tmp_path, samples=22, epochs=1)
    with made.stops.listening(), pytest.raises(StoppedError):
        made.run()
    assert max(taken) == 6


def test_a_stop_between_epochs_saves_off_the_interval(tmp_path, steps):
    """Finished epochs must not be lost to a stop that leaves time to save them."""
    steps[6] = lambda learner: os.kill(os.getpid(), signal.SIGTERM)
    made = training(tmp_path, epochs=9, checkpoint_interval=5)
    with made.stops.listening(), pytest.raises(StoppedError, match="after epoch 2; run"):
        made.run()
    assert checkpoint.read(tmp_path / LAST).epoch == 2


def test_a_stop_in_mid_epoch_tells_what_a_long_interval_loses(tmp_path, steps):
    """The message must not say that everything is saved when it is not."""
    steps[11 + 2] = lambda learner: os.kill(os.getpid(), signal.SIGTERM)
    made = training(tmp_path, samples=22, epochs=9, checkpoint_interval=5)
    with made.stops.listening(), pytest.raises(StoppedError, match="after epoch 0; 1 finished epochs are lost"):
        made.run()


def test_an_epoch_that_will_not_fit_is_not_begun(tmp_path, monkeypatch):
    """Killed by the scheduler in mid-epoch, the run would lose that time and its orderly end."""
    made = training(tmp_path, epochs=9, deadline=time.monotonic() + 1000)
    monkeypatch.setattr(Training, "_longest_epoch", lambda self: 2000.0 if self.statistics.epoch == 2 else 1.0)
    with pytest.raises(StoppedError, match="time limit, after epoch 2"):
        made.run()


def test_the_longest_epoch_counts_with_its_checkpoint(tmp_path):
    """The mean would be too short for every second epoch."""
    made = training(tmp_path)
    assert made._longest_epoch() == 0
    made.run()
    for row, times in zip(made.statistics.rows, [(5.0, 1.0), (3.0, 4.0)], strict=True):
        row.epoch_duration, row.checkpoint_stall = times
    assert made._longest_epoch() == 7.0


def test_times_are_parts_of_the_epoch_and_checkpoints_are_not(tmp_path, monkeypatch):
    """Hazard 15: what is timed is the benchmark's definition; a slow checkpoint must show beside it."""
    monkeypatch.setattr(TinySamples, "__getitem__", _slowly(TinySamples.__getitem__, 0.02))
    made = training(tmp_path, epochs=1, async_save=False)
    real = made.checkpoints.save
    made.checkpoints.save = lambda capture: (time.sleep(0.5), real(capture))
    made.run()
    row = made.statistics.rows[0]
    assert row.checkpoint_stall >= 0.5
    assert row.data_duration >= 5 * 0.02
    assert row.val_duration >= 3 * 0.02
    assert row.data_duration <= row.train_duration
    assert row.train_duration + row.val_duration <= row.epoch_duration
    assert row.minibatch_duration is not None


def test_a_checkpoint_holds_all_that_a_resume_needs(tmp_path):
    """Hazard 27: facts that go through JSON must come back as they were."""
    made = training(tmp_path)
    made.run()
    facts = json.loads(json.dumps(checkpoint.read(tmp_path / LAST).facts))
    assert facts["seed"] == 1
    assert facts["val_dice"] == made.statistics.val_dice
    assert Statistics(tmp_path, facts["rows"]).rows[0] == made.statistics.rows[0]


def _slowly(function, seconds):
    def slow(*arguments):
        time.sleep(seconds)
        return function(*arguments)

    return slow
