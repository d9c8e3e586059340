"""Replayed steps: what is tried before a graph is used, and what happens when it fails.

A GPU is not needed: a recording here calls the step once more, on the buffers it was recorded with, and
writes to the same outputs. Real captures are tested in ``tests/gpu/test_graph_on_gpu.py``.
"""

import contextlib
import dataclasses
import gc
import weakref

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
        self.fails, self.spoil = fails, lambda outputs: None
        self.captures = self.replays = 0
        self.alive = weakref.WeakSet()

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
            self.spoil(outputs)

        self.alive.add(replay)
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

    def spoil(outputs):
        with torch.no_grad():
            learner.model.head.bias[0] += amount

    recorder.spoil = spoil
    assert steps(learner, BATCHES) == steps(plain, BATCHES)
    assert all(map(torch.equal, state_of(learner), state_of(plain)))
    assert (recorder.captures, recorder.replays) == (1, 1)
    assert learner.graphs.training.status == "off: a replayed step differed from the step that was captured"
    assert len([record for record in caplog.records if graph.SWITCH in record.message]) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_replay_with_other_outputs_is_not_used(number):
    """85: loss and Dice that a graph gets wrong would be reported, and validation changes nothing else."""
    recorder = Recorder()
    recorder.spoil = lambda outputs: outputs[number].mul_(1 + 1e-6)
    learner, plain = with_graphs(recorder), tiny_learner()
    results, expected = ([train_step(which, BATCHES[0])[1:] for _ in range(2)] for which in (learner, plain))
    assert results == expected
    assert recorder.replays == 1


def test_a_refusal_gives_back_the_graphs_of_other_shapes():
    """A graph that is never replayed again would hold its activations to the end of the training."""
    recorder = Recorder()
    learner = with_graphs(recorder)
    train_step(learner, BATCHES[0])
    gc.collect()
    assert len(recorder.alive) == 1
    recorder.fails = RuntimeError("no")
    train_step(learner, BATCHES[2])
    gc.collect()
    assert len(recorder.alive) == 0


def test_dtypes_have_graphs_of_their_own():
    """Copied into the buffers of another dtype, a batch would be rounded to it."""
    graphs = Graphs("training", Recorder())
    for value in (torch.tensor([1]), torch.tensor([1.5])):
        (twice,) = graphs.run(lambda inputs: (inputs["x"] * 2,), {"x": value})
        assert torch.equal(twice, value * 2)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted\nmore"),
        torch.OutOfMemoryError("no memory"),
        AssertionError("a generator is not registered"),
        MemoryError("no memory on the host"),
    ],
)
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


def test_a_cause_that_was_set_aside_is_not_told():
    """The record would send its reader to an error that was dealt with."""
    for clause, expected in (
        (lambda: chained(RuntimeError("refused"), None), "RuntimeError: refused"),
        (lambda: chained(RuntimeError("refused"), ValueError("the cause")), "ValueError: the cause"),
    ):
        learner = with_graphs(Recorder(fails=clause()))
        train_step(learner, BATCHES[0])
        assert learner.graphs.training.status == f"off: {expected}"


def chained(error, cause):
    """Return ``error`` as raised from ``cause`` while a look-up failed."""
    try:
        try:
            raise KeyError("no such key")
        except KeyError:
            raise error from cause
    except RuntimeError as raised:
        return raised


def test_an_interrupt_of_a_capture_passes():
    """A person's Ctrl-C in the warm-up must end the training."""
    with pytest.raises(KeyboardInterrupt):
        train_step(with_graphs(Recorder(fails=KeyboardInterrupt())), BATCHES[0])


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
