"""Which calls the fused head takes, what becomes of the others, and its launches; no kernel runs here."""

import subprocess
import sys
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from norm_cases import make_case
from torch import nn

from scaffold.kernels import refusals
from scaffold.kernels.group_norm.plan import Device
from scaffold.kernels.head import op, plan

H200 = Device(132, 32, tuned=True)


def case(shape=(2, 16, 2, 3, 4), classes=5, dtype=torch.float32):
    tensors = make_case(shape, dtype, parameters=dtype)
    return [*tensors, torch.randn(classes, shape[1], 1, 1, 1).to(dtype), torch.randn(classes).to(dtype)]


def changed(place, change):
    inputs = case()
    inputs[place] = change(inputs[place])
    return inputs


REFUSED = {
    "gathered": (case(), 4, lambda rows: rows),
    "NCDHW": (changed(0, lambda x: x.contiguous()), 4, None),
    "groups": (case(), 5, None),
    "float64": (case(dtype=torch.float64), 4, None),
    "shapes": (changed(3, lambda w: w[:, 1:]), 4, None),
    "norm's shapes": (changed(1, lambda w: w[1:]), 4, None),
    "dtypes": (changed(3, lambda w: w.half()), 4, None),
    "meta": (changed(4, lambda b: b.to("meta")), 4, None),
    "33 classes": (case(classes=33), 4, None),
    "padded to 256 lanes": (case((1, 129, 1, 1, 2)), 3, None),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_calls_that_the_kernels_cannot_serve_are_declined(reason, monkeypatch):
    """A kernel would read what is not there; each call differs from an accepted one in one respect."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(refusals, "_HAS_TRITON", True)
    assert op.declines(*case(), 4) is None, "control"
    inputs, groups, partials = REFUSED[reason]
    assert op.declines(*inputs, groups, 1e-5, partials) is not None


def test_input_of_another_dtype_than_autocasts_is_declined(monkeypatch):
    """The rounding between normalisation and convolution would be left out."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(refusals, "_HAS_TRITON", True)
    with torch.autocast("cpu", torch.float16):
        assert "autocast" in op.declines(*case(), 4)
        assert op.declines(*[tensor.half() for tensor in case()], 4) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="here kernels do run")
def test_without_a_gpu_it_is_the_formula_and_triton_stays_out():
    """A machine without a GPU would fail at import, pay for Triton's, or train another network."""
    x, norm_weight, norm_bias, weight, bias = case(dtype=torch.float64)
    found = op.group_norm_relu_pointwise(x, norm_weight, norm_bias, weight, bias, 4, 1e-3)
    assert torch.equal(found, F.conv3d(F.relu(F.group_norm(x, 4, norm_weight, norm_bias, 1e-3)), weight, bias))
    code = "import sys, scaffold.kernels.head.op; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_gradients_in_float64():
    """The fallback would lose a gradient."""
    inputs = [tensor.requires_grad_() for tensor in case((2, 4, 2, 2, 2), 3, torch.float64)]
    assert torch.autograd.gradcheck(lambda *tensors: op.group_norm_relu_pointwise(*tensors, 2), inputs)


def test_the_two_operations_are_told_where_they_stand(monkeypatch):
    """Without it, a rung that fails would be left in the midst of a checkpointed step."""
    sites, site = [], nn.Identity()
    for module, name in ((op.group_norm, "group_norm_relu"), (op.pointwise, "pointwise_convolution")):
        monkeypatch.setattr(module, name, lambda x, *_, site: sites.append(site) or x)
    op.group_norm_relu_pointwise(*case(), 4, site=site)
    assert sites == [site, site]


@pytest.mark.parametrize("voxels", [1, 127, 129, 33**3, 128**3, 256**3, 512**3, plan.MOST_VOXELS])
@pytest.mark.parametrize("kernel", get_args(plan.Pass))
@pytest.mark.parametrize(("channels", "itemsize", "samples"), [(64, 2, 1), (64, 4, 2), (128, 2, 1), (4, 2, 700)])
def test_programs_cover_all_tiles_once(kernel, channels, itemsize, samples, voxels):
    """Voxels would be left out, a program have nothing to do, or the end of a tile overflow."""
    problem = plan.Problem(channels, 2, 6, voxels, samples, itemsize)
    made = dict(plan.plan(kernel, problem, H200).constants)
    tiles = -(-voxels // made["BLOCK"])
    assert made["PROGRAMS"] * made["TURNS"] >= tiles > made["PROGRAMS"] * (made["TURNS"] - 1)
    assert made["PROGRAMS"] * made["TURNS"] * made["BLOCK"] < 2**31
    assert made["BLOCK"] >= 16 <= made["BLOCK_GROUPS"] * made["PADDED"]
