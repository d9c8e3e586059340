"""Whole runs of the kernel benchmark, at its small sizes."""

import pytest
import torch

from scaffold.errors import UserError
from scaffold.kernels.bench import Arm, Case, Cost, roofline, run
from scaffold.kernels.bench.workloads import WORKLOADS

CPU = torch.device("cpu")


def test_case_without_enough_memory_is_left_out(monkeypatch, caplog):
    """A smaller GPU would lose all that it had measured."""

    def too_large():
        raise torch.OutOfMemoryError("256 GiB")

    def small():
        return Case("add", Cost(1, 1), [Arm("add", lambda: torch.ones(3))], lambda found: 0.0, "add")

    monkeypatch.setattr(run, "recipes", lambda *_: [too_large, small])
    rows = run.run(["clipped_adam"], CPU, "small", 1)
    assert {row.case for row in rows} == {"add"}
    assert "left out: 256 GiB" in caplog.text


def test_every_workload_runs_small_on_a_cpu(tmp_path, capsys):
    """A workload would be broken where no GPU can show it."""
    from scaffold.cli import main

    output, figure = tmp_path / "bench.csv", tmp_path / "roofline.png"
    options = ["--device", "cpu", "--sizes", "small", "--repetitions", "2"]
    assert main(["bench-kernels", *options, "--output", str(output), "--figure", str(figure)]) == 0
    rows = roofline.read_rows(output, "again")
    assert {row["workload"] for row in rows} == set(WORKLOADS)
    assert all(row["device"] == "CPU" and float(row["rms_error"]) < 1e-6 for row in rows)
    assert {row["arm"] for row in rows if "(again)" not in row["arm"]} == {
        "eager", "separate", "two operations", "library", "stock", "stock contiguous",
    }  # fmt: skip
    assert figure.stat().st_size > 10_000
    assert "eager" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "--device is tpu; allowed are cuda"),
        (["--workload", "u_net", "--device", "cpu"], "unknown workload u_net; there are gated_stack_backward"),
        (["--repetitions", "0"], "--repetitions is 0; at least 1"),
        (["--figure", "roof.pdf"], "must end in .png or .svg"),
    ],
)
def test_wrong_option_is_told(options, message, tmp_path, capsys):
    """A mistake would end in a traceback, or after minutes."""
    from scaffold.cli import main

    output = tmp_path / "bench.csv"
    assert main(["bench-kernels", "--output", str(output), *options]) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_told():
    """The benchmark would fail deep inside PyTorch."""
    with pytest.raises(UserError, match="no GPU is visible"):
        run.run(["gated_stack_backward"], torch.device("cuda"), "small", 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_operation_of_the_network_runs_small_on_a_gpu(caplog):
    """An arm could not be captured, a backward pass among them; or its result would be wrong."""
    names = [name for name in WORKLOADS if not name.startswith("gated_stack")]
    rows = run.run(names, torch.device("cuda"), "small", 5)
    assert {row.workload for row in rows} == set(names)
    assert all(row.graph_calls > 0 for row in rows if row.workload != "clipped_adam")
    assert all(row.rms_error < 1e-2 for row in rows)
    assert "triton" in {row.arm for row in rows}
    assert rows[0].bfloat16_tflop_per_s > rows[0].float32_tflop_per_s
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
