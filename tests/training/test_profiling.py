"""The profiler's switch, window and file."""

import json

import pytest
import torch
from tiny_learner import CONFIG

from scaffold.parallel.launch import Context
from scaffold.training import profiling
from scaffold.training.profiling import StepProfiler, Window, window


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_on(text):
    """Hazard 62."""
    assert window({"PROFILE_TORCH": text}) == Window(1, 1, 3)


@pytest.mark.parametrize("variables", [{}, *({"PROFILE_TORCH": text} for text in ("0", "", "false", "off", "2"))])
def test_off(variables):
    """Hazard 62: any text, even "0", would switch the profiler on, and slow a measured run."""
    assert window(variables) is None


def test_the_window_is_bounded():
    """Hazard 63: no wait buffers the warm-up; no end buffers the whole run."""
    asked = {"PROFILE_TORCH": "1", "PROFILE_TORCH_WAIT": "0", "PROFILE_TORCH_ACTIVE": "0", "PROFILE_TORCH_WARMUP": "7"}
    assert window(asked) == Window(1, 7, 1)
    assert window({"PROFILE_TORCH": "1", "PROFILE_TORCH_WITH_STACK": "yes"}).with_stack


def profiled(folder, context, steps=8):
    with StepProfiler(CONFIG, context, folder, Window(wait=2, warmup=1, active=2)) as profiler:
        for step in range(steps):
            torch.ones(step + 1).cos()
            profiler.step()
    return list(folder.glob("*.json"))


def test_one_trace_of_the_active_steps_alone(tmp_path):
    """Hazards 63, 64: the trace lies in the run's folder and holds the window, once."""
    (trace,) = profiled(tmp_path / "traces", Context())
    assert trace.name.startswith("torch-")
    assert f"-r0-N1-n1-ps{CONFIG.problem_scale}-e-1-" in trace.name
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::cos" for event in events) == 2


def test_one_rank_per_host(tmp_path):
    """Hazard 50: every rank tracing fills the disk."""
    other = Context()
    other.local_rank = 1
    assert profiled(tmp_path, other) == []


def test_nodes_are_rounded_up(tmp_path):
    """Hazard 64: 3 ranks with 2 per host are 2 nodes, not 1."""
    context = Context()
    context.size, context.local_size = 3, 2
    assert "-N2-n3-" in profiling.trace_name(CONFIG, context)


def test_a_failing_export_is_logged_and_training_goes_on(tmp_path, caplog):
    """Hazard 64: raised on the profiling rank alone, it leaves the others in a collective."""
    (tmp_path / "file").touch()
    assert profiled(tmp_path / "file" / "traces", Context()) == []
    assert "profiling failed, training goes on" in caplog.text
