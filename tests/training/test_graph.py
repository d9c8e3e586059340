"""Replayed steps: what is tried before a graph is used, and what happens when it fails.

A GPU is not needed: a recording here calls the step once more, on the buffers it was recorded with, and
writes to the same outputs. Real captures are tested in ``tests/gpu/test_graph_on_gpu.py``.
"""

import contextlib
import dataclasses

import pytest
import torch
from tiny_learner import CPU, batch_of, tiny_learner, training_batches, validation_batches

from scaffold.parallel.team import Solo
from scaffold.training import graph
from scaffold.training.evaluation import evaluate
from scaffold.training.graph import Graphs, StepGraphs
from scaffold.training.step import train_step
from scaffold.training.warmup import warm_up


class Recorder:
    """Stands for the GPU.

    Args:
        fails: raised by each capture.
    """

    device = CPU

    def __init__(self, fails=None):
        self.fails, self.spoil = fails, lambda: None
        self.captures = self.replays = 0

    def rehearsal(self):
        return contextlib.nullcontext()

    def capture(self, function):
        self.captures += 1
        if self.fails:
            raise self.fails
        outputs = []

        def replay():
            self.replays += 1
            made = function()
            if not outputs:
                outputs.extend(tensor.clone() for tensor in made)
            for mine, its in zip(outputs, made, strict=True):
                mine.copy_(its)
            self.spoil()

        return replay, outputs


def with_graphs(recorder, **keys):
    """Return a learner whose steps are recorded."""
    learner = tiny_learner(**keys)
    optimizer = learner.optimizer
    changes = lambda: [*learner.model.parameters(), *optimizer.state_tensors()]  # noqa: E731
    training = Graphs("training", recorder, changes, optimizer.publish_rate)
    return dataclasses.replace(learner, graphs=StepGraphs(training, Graphs("validation", recorder)))


def state_of(learner):
    return [*map(torch.clone, learner.model.parameters()), *map(torch.clone, learner.optimizer.state_tensors())]


def steps(learner, batches):
    return [train_step(learner, batch).loss for batch in batches]


BATCHES = [batch_of(0, 1), batch_of(2, 3), batch_of(4), batch_of(5, 6), batch_of(7)]


def test_each_shape_is_captured_once_and_counts_as_one_step():
    """85: a trial that is not undone trains twice on the first batch; a ragged batch in the wrong graph is cut."""
    recorder = Recorder()
    learner, plain = with_graphs(recorder), tiny_learner()
    losses, expected = steps(learner, BATCHES), steps(plain, BATCHES)
    assert losses == expected, "results of later replays would overwrite earlier ones"
    assert all(map(torch.equal, state_of(learner), state_of(plain)))
    assert (recorder.captures, recorder.replays) == (2, 5)
    assert learner.graphs.status() == {"training": "captured", "validation": "not used"}


@pytest.mark.parametrize("amount", [1e-12, float("nan")])
def test_a_replay_with_other_bits_is_not_used(amount, caplog):
    """85: it would train another network than the one whose steps are taken op by op."""
    recorder = Recorder()
    learner, plain = with_graphs(recorder), tiny_learner()

    def spoil():
        with torch.no_grad():
            learner.model.head.bias[0] += amount

    recorder.spoil = spoil
    assert steps(learner, BATCHES) == steps(plain, BATCHES)
    assert all(map(torch.equal, state_of(learner), state_of(plain)))
    assert (recorder.captures, recorder.replays) == (1, 1)
    assert learner.graphs.training.status == "off: a replayed step differed from the step that was captured"
    assert len([record for record in caplog.records if graph.SWITCH in record.message]) == 1


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted\nmore"), torch.OutOfMemoryError("no memory")])
def test_a_failing_capture_leaves_the_step_taken(error, caplog):
    """A training must not end, repeat or lose a step because an optimisation of it failed."""
    recorder = Recorder(fails=error)
    learner, plain = with_graphs(recorder), tiny_learner()
    assert steps(learner, BATCHES) == steps(plain, BATCHES)
    assert all(map(torch.equal, state_of(learner), state_of(plain)))
    assert recorder.captures == 1
    assert str(error).splitlines()[0] in learner.graphs.training.status
    assert "more" not in caplog.text


def test_the_cause_of_a_failing_capture_is_told():
    """Ending a capture that has failed raises as well, and says nothing of the cause."""
    try:
        try:
            raise RuntimeError("a host read")
        finally:
            raise RuntimeError("capture invalidated")
    except RuntimeError as error:
        learner = with_graphs(Recorder(fails=error))
    train_step(learner, BATCHES[0])
    assert learner.graphs.training.status == "off: RuntimeError: a host read"


def test_the_step_s_own_errors_pass():
    """A batch that cannot be trained on is no reason to train without graphs."""
    learner = with_graphs(Recorder())
    with pytest.raises(KeyError):
        train_step(learner, {"image": torch.zeros(1, 3, 8, 8, 8)})
    assert learner.graphs.training.status == "not used"


def test_validation_replays_the_same_score():
    """85: shapes, modes and sums of validation are its own."""
    recorder = Recorder()
    learner, plain = with_graphs(recorder), tiny_learner()
    batches = list(validation_batches(5, 2))
    assert evaluate(learner, batches) == evaluate(plain, batches)
    assert (recorder.captures, recorder.replays) == (2, 3)


def test_warm_up_captures_what_the_epochs_meet():
    """Hazard 18: a capture in a timed epoch would count there; one undone by replacing tensors would be void."""
    recorder = Recorder()
    learner, plain = with_graphs(recorder), tiny_learner()
    training, validation = training_batches(5, 2), validation_batches(3, 2)
    warm_up(learner, training, validation, 1, Solo())
    assert recorder.captures == 4
    assert steps(learner, training) == steps(plain, training)
    assert evaluate(learner, validation) == evaluate(plain, validation)
    assert recorder.captures == 4
    assert all(map(torch.equal, state_of(learner), state_of(plain)))


def test_what_a_replay_reads_is_prepared_before_each():
    """85: a replay runs no Python that would read the learning rate that the schedule wrote."""
    done = []

    def function(inputs):
        done.append("step")
        return (inputs["x"] + 1,)

    graphs = Graphs("training", Recorder(), prepare=lambda: done.append("prepare"))
    for _ in range(2):
        graphs.run(function, {"x": torch.zeros(2)})
    assert done == ["prepare", "step", "step", "prepare", "step"], "a trial, its replay, and a replay"
    learner = with_graphs(Recorder())
    learner.optimizer.param_groups[0]["lr"] = 0.125
    learner.optimizer.publish_rate()
    assert learner.optimizer._rate.device.item() == 0.125


def test_equal_nan_is_equal():
    """A loss that is not finite is the epoch's to refuse, not a difference between the two ways to take a step."""
    graphs = Graphs("training", Recorder())
    graphs.run(lambda inputs: (inputs["x"] * float("nan"),), {"x": torch.ones(2)})
    assert graphs.status == "captured"


def test_a_cpu_has_no_graphs_and_says_so():
    """The record must not claim a replay."""
    learner = tiny_learner()
    graphs = StepGraphs.of(learner.model, learner.optimizer, CPU)
    assert graphs.status() == dict.fromkeys(("training", "validation"), "off: none on device cpu")


def test_graphs_can_be_switched_off_and_need_our_adam(monkeypatch):
    """What a graph would freeze (a rate on the host) or break (an all-reduce) must be refused beforehand."""
    monkeypatch.setattr(graph, "Device", lambda device: Recorder())
    cuda = torch.device("cuda")
    learner, other = tiny_learner(), tiny_learner(optimizer="SGD")
    assert StepGraphs.of(learner.model, learner.optimizer, cuda).training.status == "not used"
    assert "SGD" in StepGraphs.of(other.model, other.optimizer, cuda).training.status
    monkeypatch.setenv(graph.SWITCH, "off")
    assert graph.SWITCH in StepGraphs.of(learner.model, learner.optimizer, cuda).validation.status
