"""Which backward is chosen: without GPU, Triton or tensors."""

import sys

import pytest

from scaffold.errors import UserError
from scaffold.kernels.gated_stack import plan
from scaffold.kernels.gated_stack.layout import StackDims
from scaffold.kernels.gated_stack.plan import Request, plan_backward

DIMS = StackDims(2, 1000, 3, 32, 3)
ELIGIBLE = {"dims": DIMS, "dtype": "float32", "device_kind": "cuda"}
VIOLATIONS = {
    "device": ({"device_kind": "cpu"}, "eager"),
    "dtype": ({"dtype": "bfloat16"}, "eager"),
    "width": ({"dims": StackDims(2, 1000, 3, 64, 3)}, "relay"),
    "degree": ({"dims": StackDims(2, 1000, 7, 32, 3)}, "eager"),
    "k_tile": ({"relay_k_tile": 32}, "relay"),
    "weight_grad": ({"needs_weight_grad": True}, "relay"),
    "surfaces": ({"keeps_surfaces": True}, "relay"),
    "cotangent": ({"has_cotangent": True}, "relay"),
    "grad_mode": ({"grad_mode": True}, "eager"),
}
"""Reason: (the one thing that is not eligible, the path taken instead)."""


def check_refused(reason):
    change, path = VIOLATIONS[reason]
    assert plan_backward(Request(**ELIGIBLE), switch=True) == plan.BackwardPlan("panel", True, "ok")
    assert plan_backward(Request(**ELIGIBLE | change), switch=True) == plan.BackwardPlan(path, False, reason)


@pytest.mark.parametrize("reason", plan.GUARDS)
def test_each_violation_is_refused_for_its_reason(reason):
    """The fused kernels would run where they are wrong."""
    check_refused(reason)


@pytest.mark.parametrize("reason", plan.GUARDS)
def test_a_missing_guard_is_noticed(reason, monkeypatch):
    """Control: the test above would pass without the guard."""
    monkeypatch.setitem(plan.GUARDS, reason, lambda request: False)
    with pytest.raises(AssertionError):
        check_refused(reason)


@pytest.mark.parametrize("switch", [True, False])
def test_eligibility_does_not_depend_on_the_switch(switch):
    """A test with the switch off would pass whatever the guards say."""
    chosen = plan_backward(Request(**ELIGIBLE), switch=switch)
    assert (chosen.eligible, chosen.reason) == (True, "ok")
    assert chosen.path == ("panel" if switch else "relay")
    refused = plan_backward(Request(**ELIGIBLE, has_cotangent=True), switch=switch)
    assert (refused.eligible, refused.reason, refused.path) == (False, "cotangent", "relay")


@pytest.mark.parametrize("requested", ["eager", "relay", "fused", "panel"])
@pytest.mark.parametrize("switch", [True, False])
def test_demanded_path_is_taken(requested, switch):
    """The keyword would not beat the switch."""
    assert plan_backward(Request(**ELIGIBLE), requested, switch).path == requested


@pytest.mark.parametrize(
    ("requested", "reason"), [("fused", "width"), ("panel", "grad_mode"), ("relay", "dtype"), ("relay", "device")]
)
def test_demanded_path_that_cannot_serve_is_an_error(requested, reason):
    """Another path would be taken without a word."""
    with pytest.raises(plan.IneligibleError, match=f"backward='{requested}' cannot serve this call .{reason}: "):
        plan_backward(Request(**ELIGIBLE | VIOLATIONS[reason][0]), requested)


def test_relay_serves_what_only_the_fused_kernels_refuse():
    """The relay would be refused for a condition that is not its own."""
    for reason, (change, path) in VIOLATIONS.items():
        if path == "relay":
            assert plan_backward(Request(**ELIGIBLE | change), "relay").reason == reason


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, False), ("1", True), ("true", True), ("Yes", True), (" ON ", True), ("0", False), ("no", False),
     ("False", False), ("off", False)],
)  # fmt: skip
def test_switch_is_a_strict_boolean(text, value, monkeypatch):
    """A spelling that people use would count as its opposite."""
    monkeypatch.delenv(plan.SWITCH, raising=False)
    if text is not None:
        monkeypatch.setenv(plan.SWITCH, text)
    assert plan.switch_is_on() is value


@pytest.mark.parametrize("text", ["", "2", "fused", "t", "-1"])
def test_unclear_switch_is_refused(text, monkeypatch):
    """A typing mistake would silently be off."""
    monkeypatch.setenv(plan.SWITCH, text)
    with pytest.raises(UserError, match=f"{plan.SWITCH} is '{text}'; allowed are 1, true"):
        plan.switch_is_on()


def test_panels_do_not_overhang():
    """A panel would spend products on columns that do not exist."""
    for channels in (16, 32):
        for lmax in range(1, 7):
            dims = StackDims(1, 1, lmax, channels, 1)
            assert dims.m1 % plan.tile_for("panel_vector", dims, "ieee").block_n == 0


def test_planning_needs_no_triton(monkeypatch):
    """A machine without Triton could not even ask why nothing is fused."""
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    check_refused("device")
