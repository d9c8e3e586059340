"""The kernel benchmark's way of measuring, with functions whose speed is known."""

import math
import time

import pytest
import torch

from scaffold.errors import DamagedFileError, UserError
from scaffold.kernels import bench, roofline
from scaffold.kernels.bench import Arm, Case, Ceilings, Cost, interleave, interval, measure

CPU = torch.device("cpu")


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
    rows = {row.arm: row for row in measure("w", case, CPU, Ceilings(1e9, 5e8, 1e9), 11)}
    assert list(rows) == ["slow", "fast", "slow (again)"]
    assert rows["fast"].time_over_base == pytest.approx(0.5, abs=0.15)
    control = rows["slow (again)"]
    assert control.time_over_base_low <= 1 <= control.time_over_base_high
    assert not rows["fast"].time_over_base_low <= 1 <= rows["fast"].time_over_base_high
    # The minimum takes 1 ms at the copy bandwidth and 2 ms at the arithmetic rate.
    assert rows["slow"].roof_ms == pytest.approx(2)
    assert rows["slow"].score == pytest.approx(2 / rows["slow"].median_ms)
    assert rows["slow"].rms_error == 0
    assert (rows["fast"].own_gbytes, rows["fast"].own_gflop) == (3, 5)
    assert math.isnan(rows["slow"].own_gflop)


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
        list(bench.run(["gated_stack_backward"], torch.device("cuda"), "small", 1))


def test_unreadable_results_are_told(tmp_path):
    """A figure would be drawn from something else, or fail with a KeyError."""
    path = tmp_path / "bench.csv"
    with pytest.raises(UserError, match="make it with: snakemake"):
        roofline.read_rows(path, "snakemake")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DamagedFileError, match="not a kernel benchmark"):
        roofline.read_rows(path, "snakemake")
