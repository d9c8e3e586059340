"""The kernel benchmark's way of measuring, with functions whose speed is known."""

import math
import time
from dataclasses import replace

import pytest
import torch

from scaffold.errors import DamagedFileError, UserError
from scaffold.kernels import bench, roofline
from scaffold.kernels.bench import Arm, Case, Ceilings, Cost, interleave, interval, measure

CPU = torch.device("cpu")
CEILINGS = Ceilings(bytes_per_s=1e9, flops_per_s=5e8, tensor_flops_per_s=1e9, bfloat16_flops_per_s=4e9)


def sleeper(milliseconds):
    def run():
        time.sleep(milliseconds / 1e3)
        return torch.ones(3)

    return run


@pytest.fixture
def case():
    arms = [Arm("slow", sleeper(4)), Arm("fast", sleeper(2), cost=Cost(3e9, 5e9))]
    return Case("sleep", Cost(bytes=1e6, flops=1e6), arms, lambda found: (found - 1).abs().max().item(), "slow")


def test_ratio_score_and_control(case):
    """A faster arm would not look faster, or the base would differ from itself."""
    rows = {row.arm: row for row in measure("w", case, CPU, CEILINGS, 11)}
    assert list(rows) == ["slow", "fast", "slow (again)"]
    assert rows["fast"].time_over_base == pytest.approx(0.5, abs=0.15)
    control = rows["slow (again)"]
    assert control.time_over_base_low <= 1 <= control.time_over_base_high
    assert not rows["fast"].time_over_base_low <= 1 <= rows["fast"].time_over_base_high
    # The minimum takes 1 ms at the copy bandwidth and 2 ms at the arithmetic rate.
    assert (rows["slow"].roof_ms, rows["slow"].limit) == (pytest.approx(2), "float32")
    assert rows["slow"].score == pytest.approx(2 / rows["slow"].median_ms)
    assert rows["slow"].rms_error == 0
    assert (rows["fast"].own_gbytes, rows["fast"].own_gflop) == (3, 5)
    assert math.isnan(rows["slow"].own_gflop)


def test_matrix_products_are_held_against_their_own_ceiling(case):
    """A bfloat16 convolution would look better than its ceiling, judged by the rate of float32."""
    row = measure("w", replace(case, arithmetic="bfloat16"), CPU, CEILINGS, 2)[0]
    # 0.25 ms of arithmetic at 4 GFLOP/s, so that the bytes are the limit.
    assert (row.roof_ms, row.limit) == (pytest.approx(1), "bytes")
    row = measure("w", replace(case, arithmetic="bfloat16", minimum=Cost(1e6, 8e6)), CPU, CEILINGS, 2)[0]
    assert (row.roof_ms, row.limit) == (pytest.approx(2), "bfloat16")


def test_slow_arms_are_timed_in_fewer_rounds(monkeypatch):
    """The largest sites would take the device for minutes; or too few rounds would be left for an interval."""
    assert [len(times) for times in interleave([sleeper(2)], CPU, 40, span_s=0.02)] == [pytest.approx(10, abs=3)]
    assert [len(times) for times in interleave([sleeper(2)], CPU, 40, span_s=0)] == [bench.LEAST_ROUNDS]
    assert [len(times) for times in interleave([sleeper(2)], CPU, 3, span_s=0)] == [3]
    assert [len(times) for times in interleave([sleeper(0)], CPU, 40)] == [40]


def test_arm_with_a_state_is_compared_from_its_start(case):
    """The error of an optimizer's step would be that of whichever step came first."""
    stateful = replace(case.arms[0], check=lambda: torch.full((3,), 1.25))
    rows = measure("w", replace(case, arms=[stateful, case.arms[1]]), CPU, CEILINGS, 2)
    assert [row.rms_error for row in rows] == [0.25, 0, 0.25]


def test_case_without_enough_memory_is_left_out(case, monkeypatch, caplog):
    """A smaller GPU would lose all that it had measured."""

    def too_large():
        raise torch.OutOfMemoryError("256 GiB")

    monkeypatch.setattr(bench, "recipes", lambda *_: [too_large, lambda: case])
    rows = bench.run(["clipped_adam"], CPU, "small", 1)
    assert {row.case for row in rows} == {"sleep"}
    assert "left out: 256 GiB" in caplog.text


def test_arms_alternate():
    """A clock that drifts would favour the arm that runs first."""
    calls = []
    interleave([lambda: calls.append("a"), lambda: calls.append("b")], CPU, 3)
    assert "".join(calls[6:]) == "abbaab"


def test_interval_of_the_median():
    """The interval would be that of a single value, or miss the median."""
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    low, middle, high = interval([float(i) for i in range(100)])
    assert (low, middle, high) == (40.0, 49.5, 59.0)


def test_every_workload_runs_small_on_a_cpu(tmp_path, capsys):
    """A workload would be broken where no GPU can show it."""
    from scaffold.cli import main

    output, figure = tmp_path / "bench.csv", tmp_path / "roofline.png"
    options = ["--device", "cpu", "--sizes", "small", "--repetitions", "2"]
    assert main(["bench-kernels", *options, "--output", str(output), "--figure", str(figure)]) == 0
    rows = roofline.read_rows(output, "again")
    assert {row["workload"] for row in rows} == set(bench.WORKLOADS)
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
        bench.run(["gated_stack_backward"], torch.device("cuda"), "small", 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_short_operations_are_timed_without_their_launches():
    """What the host needs to launch a kernel would be taken for the kernel's time."""
    x = torch.ones(1024, device="cuda")
    arms = [Arm("add", lambda: x + 1)]
    tiny = Case("add", Cost(bytes=8192, flops=1024), arms, lambda found: (found - 2).abs().max().item(), "add")
    ceilings = Ceilings(4e12, 5e13, 4e14, 8e14)
    with bench._side_stream(x.device):
        launched, _ = measure("w", tiny, x.device, ceilings, 20)
        replayed, again = measure("w", replace(tiny, graph=True), x.device, ceilings, 20)
    assert (launched.graph_calls, replayed.graph_calls, again.graph_calls) == (0, bench.MOST_CALLS, bench.MOST_CALLS)
    assert replayed.median_ms < launched.median_ms / 2
    assert again.time_over_base == pytest.approx(1, abs=0.2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_operation_of_the_network_runs_small_on_a_gpu(caplog):
    """An arm could not be captured, a backward pass among them; or its result would be wrong."""
    names = [name for name in bench.WORKLOADS if not name.startswith("gated_stack")]
    rows = bench.run(names, torch.device("cuda"), "small", 5)
    assert {row.workload for row in rows} == set(names)
    assert all(row.graph_calls > 0 for row in rows if row.workload != "clipped_adam")
    assert all(row.rms_error < 1e-2 for row in rows)
    assert "triton" in {row.arm for row in rows}
    assert rows[0].bfloat16_tflop_per_s > rows[0].float32_tflop_per_s
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_unreadable_results_are_told(tmp_path):
    """A figure would be drawn from something else, or fail with a KeyError."""
    path = tmp_path / "bench.csv"
    with pytest.raises(UserError, match="make it with: snakemake"):
        roofline.read_rows(path, "snakemake")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DamagedFileError, match="not a kernel benchmark"):
        roofline.read_rows(path, "snakemake")
