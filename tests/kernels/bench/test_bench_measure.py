"""What the kernel benchmark says of a case, with functions whose speed is known."""

import math
from dataclasses import replace

import pytest
import torch

from scaffold.kernels.bench import Arm, Case, Cost, timing
from scaffold.kernels.bench.ceilings import Ceilings
from scaffold.kernels.bench.measure import MOST_CALLS, measure

CPU = torch.device("cpu")
CEILINGS = Ceilings(bytes_per_s=1e9, flops_per_s=5e8, tensor_flops_per_s=1e9, bfloat16_flops_per_s=4e9)


@pytest.fixture
def case(sleeper):
    arms = [Arm("slow", sleeper(4, 0.01)), Arm("fast", sleeper(2, 0.01), cost=Cost(3e9, 5e9))]
    return Case("sleep", Cost(bytes=1e6, flops=1e6), arms, lambda found: (found - 1).abs().max().item(), "slow")


def test_ratio_score_and_control(case):
    """A faster arm would not look faster, or a drifting clock make the base differ from itself."""
    rows = {row.arm: row for row in measure("w", case, CPU, CEILINGS, 11)}
    assert list(rows) == ["slow", "fast", "slow (again)"]
    assert rows["fast"].time_over_base == pytest.approx(0.5, abs=0.01)
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


def test_arm_with_a_state_is_compared_from_its_start(case):
    """The error of an optimizer's step would be that of whichever step came first."""
    stateful = replace(case.arms[0], check=lambda: torch.full((3,), 1.25))
    rows = measure("w", replace(case, arms=[stateful, case.arms[1]]), CPU, CEILINGS, 2)
    assert [row.rms_error for row in rows] == [0.25, 0, 0.25]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_short_operations_are_timed_without_their_launches():
    """What the host needs to launch a kernel would be taken for the kernel's time."""
    x = torch.ones(1024, device="cuda")
    arms = [Arm("add", lambda: x + 1)]
    tiny = Case("add", Cost(bytes=8192, flops=1024), arms, lambda found: (found - 2).abs().max().item(), "add")
    ceilings = Ceilings(4e12, 5e13, 4e14, 8e14)
    with timing.side_stream(x.device):
        launched, _ = measure("w", tiny, x.device, ceilings, 20)
        replayed, again = measure("w", replace(tiny, graph=True), x.device, ceilings, 20)
    assert (launched.graph_calls, replayed.graph_calls, again.graph_calls) == (0, MOST_CALLS, MOST_CALLS)
    assert replayed.median_ms < launched.median_ms / 2
    assert again.time_over_base == pytest.approx(1, abs=0.2)
