"""Every kernel of the package compiled for both vendors' GPUs, on a machine without either."""

from __future__ import annotations

import importlib
import pkgutil

import kernel_needs
import mi300
import pytest
from production_kernels import H200, MI300, SPECIMENS, TARGETS, pointwise

import scaffold.kernels
from scaffold.kernels import resources

pytestmark = kernel_needs.COMPILER

MOST_STACK = {
    ("gated_stack.kernels.panel_scalar_kernel", "tf32x3"): 64,
    ("gated_stack.kernels.gemm_kernel", "ieee"): 16,
}
"""Bytes a thread on an H200, else 0: a few values beside all its registers, by Triton's version (up to 56 in 3.9 and
8 in 3.7). They are the fastest tiles there; one that does not fit spills hundreds."""


def spills(compiled, target):
    """Return what a kernel spills: bytes of stack a thread on an H200, vector registers on an MI300."""
    return resources.resources(compiled).stack_bytes if target is H200 else mi300.spilled_registers(compiled)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: f"{specimen.kernel} {specimen.form}".strip())
def test_compiles_and_fits(specimen, target):
    """A kernel would use what one vendor's compiler lacks, run from memory, or fail to start."""
    compiled = specimen.compile(target)
    allowed = MOST_STACK.get((specimen.kernel, specimen.form), 0) if target is H200 else 0
    assert spills(compiled, target) <= allowed
    assert compiled.metadata.shared <= target.shared_bytes


@pytest.mark.parametrize(
    ("target", "limits"),
    [(H200, {"maxnreg": 64}), (MI300, {"waves_per_eu": 8})],
    ids=lambda x: str(getattr(x, "arch", "")),
)
def test_spills_are_noticed(target, limits):
    """Control: the guard above would let everything pass. Here 64 registers a thread must do."""
    assert spills(pointwise("backward", target, limits=limits), target) > max(MOST_STACK.values())


def test_no_kernel_is_left_out():
    """A new kernel would be compiled on its first GPU, in somebody's training."""
    assert {specimen.kernel for specimen in SPECIMENS} == entry_kernels()


def test_a_new_kernel_is_found(monkeypatch):
    """Control: a kernel of any name is found, unless another function of Triton calls it."""
    import triton

    from scaffold.kernels.adam import kernels

    def new(x):
        return x

    new.__module__ = kernels.__name__
    before = entry_kernels()
    monkeypatch.setattr(kernels, "new", triton.jit(new), raising=False)
    assert entry_kernels() - before == {"adam.kernels.new"}


def entry_kernels():
    """Return the names below ``scaffold.kernels`` of all functions of Triton that no other one calls."""
    from triton.runtime.jit import JITFunction

    modules = pkgutil.walk_packages(scaffold.kernels.__path__, f"{scaffold.kernels.__name__}.")
    members = [vars(importlib.import_module(module.name)) for module in modules]
    functions = {id(value): value.fn for names in members for value in names.values() if isinstance(value, JITFunction)}
    called = {id(f.__globals__.get(name)) for f in functions.values() for name in f.__code__.co_names}
    return {
        f"{f.__module__}.{f.__name__}".removeprefix(f"{scaffold.kernels.__name__}.")
        for key, f in functions.items() if key not in called
    }  # fmt: skip
