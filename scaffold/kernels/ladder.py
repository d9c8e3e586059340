"""Which of an operation's implementations serves a call, and what happens when one fails.

A *ladder* holds the implementations of one operation, its *rungs*, the fastest first; all keep the same
contract. A call goes to the first rung that is switched on and does not decline it. A rung whose own
kernel fails (``KernelError``) is *latched* off for the process with one warning, and the call goes on to the
next rung. Nothing else is swallowed: not a user's error, not exhausted memory, not a device fault, not an
exception by which PyTorch steers itself.

A *site* is where in the network a call comes from: the module. One that a rung has served keeps that rung
when it is latched on behalf of another, since activation checkpointing runs a forward pass twice and the
second must save the same tensors as the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch

from scaffold.kernels import switches

_T = TypeVar("_T")

_log = logging.getLogger(__name__)
_ladders: dict[str, Ladder[Any]] = {}

_DRIVERS = ("triton error [", "cuda error", "hip error")
_FAULTS = (
    "illegal memory access", "illegal address", "illegal instruction", "misaligned", "invalid address space",
    "invalid program counter", "launch failure", "launch timed out", "device-side assert", "uncorrectable ecc",
    "hardware stack error", "hardware error", "context is destroyed",
)  # fmt: skip
"""What drivers call a fault after which the device computes nothing any more for this process."""


class KernelError(RuntimeError):
    """An implementation's own machinery failed (compilation, launch); the cause is attached."""


@contextmanager
def launch_region(op: str, on: torch.Tensor | None = None) -> Iterator[None]:
    """Turn what fails inside into ``KernelError``: to be put around allocating scratch and launching, no more.

    Exhausted memory passes as it is: the next rung would need it too, and the next step may well have it.
    So does a fault of the device, after which it computes nothing any more.

    Args:
        op: the operation.
        on: a tensor on the device to launch on, which Triton takes from the process, not from its arguments.

    Raises:
        KernelError: caused by any other exception.
    """
    try:
        # Asking costs less than switching to where one is already.
        if on is not None and on.is_cuda and on.get_device() != torch.cuda.current_device():
            with torch.cuda.device(on.device):
                yield
        else:
            yield
    except KernelError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or is_device_fault(error):
            raise
        raise KernelError(f"a kernel of {op} failed: {type(error).__name__}: {error}{remedy(op)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that memory, the device's or the host's, is exhausted."""
    # Triton's driver has no type for it.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "out of memory" in str(error).lower()


def is_device_fault(error: BaseException) -> bool:
    """Return whether ``error`` says that the device has failed, rather than that it refused a kernel."""
    if isinstance(error, torch.AcceleratorError):
        return True
    # Triton's driver has no type for it, and a compiler wraps it.
    text = str(error).lower()
    return any(source in text for source in _DRIVERS) and any(fault in text for fault in _FAULTS)


@dataclass(frozen=True)
class Rung(Generic[_T]):
    """One implementation of an operation.

    Attributes:
        name: ``triton``, ``compiled``, ``eager``.
        switch: environment variable that turns it on or off; None for one that is always on.
        declines: why it cannot serve a call with these arguments, or None if it can. Pure, cheap, never
            raises. None for a rung that serves any call, as the last of a ladder must.
        call: the implementation.
        hesitates: why it had better not serve the call, or None; a switch that is on overrules it.
    """

    name: str
    switch: str | None
    declines: Callable[..., str | None] | None
    call: Callable[..., _T]
    hesitates: Callable[..., str | None] | None = None


class _State:
    """What a process knows of a rung."""

    def __init__(self) -> None:
        self.latched = False
        self.proven: WeakSet[Any] = WeakSet()
        self.served = 0
        self.refusals: set[str] = set()


class Ladder(Generic[_T]):
    """The implementations of one operation; calling it calls one of them.

    Args:
        op: name of the operation, unique in the process.
        rungs: the fastest first; the last serves any call.

    Raises:
        ValueError: the last rung declines calls or can be switched off, or there is a ladder of that name.
    """

    def __init__(self, op: str, rungs: Sequence[Rung[_T]]) -> None:
        if rungs[-1].switch or rungs[-1].declines or rungs[-1].hesitates:
            raise ValueError(f"{op}: rung {rungs[-1].name} is the last and must serve any call")
        if op in _ladders:
            raise ValueError(f"{op}: there is a ladder of that name, whose counts and switches would be lost")
        self.op, self.rungs = op, tuple(rungs)
        self.states = {rung.name: _State() for rung in rungs}
        _ladders[op] = self

    def __call__(self, *arguments: Any, site: Any = None, **keywords: Any) -> _T:
        """Serve a call.

        While Dynamo traces, the choice is made once for the traced region, where a kernel that fails
        later raises.

        Args:
            arguments: of the operation.
            site: the module that calls, or any object that can be hashed and weakly referenced; None if
                the call is never repeated in a backward pass.
            keywords: of the operation.

        Raises:
            KernelError: a rung failed in a backward pass that repeats what it had served.
        """
        tracing = torch.compiler.is_compiling()
        for rung in self.rungs[:-1]:
            state = self.states[rung.name]
            proven = site is not None and site in state.proven
            if (state.latched and not proven) or not self._takes(rung, state, arguments, keywords):
                continue
            if tracing:
                return rung.call(*arguments, **keywords)
            try:
                result = rung.call(*arguments, **keywords)
            except KernelError as error:
                if proven:
                    if torch._C._current_graph_task_id() != -1:
                        raise
                    # Its next repetition must find the rung below, as this call does.
                    state.proven.discard(site)
                self._latch(rung, error)
                continue
            state.served += 1
            if site is not None and not proven:
                state.proven.add(site)
            return result
        result = self.rungs[-1].call(*arguments, **keywords)
        if not tracing:
            self.states[self.rungs[-1].name].served += 1
        return result

    def _takes(self, rung: Rung[_T], state: _State, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        on = switches.read(rung.switch) if rung.switch else None
        try:
            refusal = f"switched off by {rung.switch}" if on is False else None
            if refusal is None and rung.declines:
                refusal = rung.declines(*arguments, **keywords)
            if refusal is None and not on and rung.hesitates:
                refusal = rung.hesitates(*arguments, **keywords)
        except Exception as error:
            refusal = f"its predicate failed: {type(error).__name__}: {error}"
            if refusal not in state.refusals and not torch.compiler.is_compiling():
                _log.warning("%s: %s is passed over, since %s", self.op, rung.name, refusal)
        if refusal is not None and not torch.compiler.is_compiling():
            state.refusals.add(refusal)
        return refusal is None

    def _latch(self, rung: Rung[_T], error: KernelError) -> None:
        state = self.states[rung.name]
        if not state.latched:
            state.latched = True
            _log.warning("%s: %s is off from now on, and slower code takes its place: %s", self.op, rung.name, error)


def set_switch(name: str, on: bool | None) -> bool | None:
    """Override a rung's switch; None gives it back to the environment. Return the override before.

    True also gives rungs that failed another chance. Not to be called between a forward pass and its backward.

    Raises:
        ValueError: no ladder has such a switch.
    """
    governed = [(ladder, rung) for ladder in _ladders.values() for rung in ladder.rungs if rung.switch == name]
    if not governed:
        known = sorted({rung.switch for ladder in _ladders.values() for rung in ladder.rungs if rung.switch})
        raise ValueError(f"{name} is no switch; there are {', '.join(known)}")
    if on:
        for ladder, rung in governed:
            ladder.states[rung.name].latched = False
    return switches.override(name, on)


def served() -> dict[str, dict[str, int]]:
    """Return how many calls each rung of each operation has served; what never served is left out.

    Calls in a region that Dynamo traced do not count; those that a CUDA graph repeats count once.
    """
    counts = {
        op: {name: state.served for name, state in ladder.states.items() if state.served}
        for op, ladder in _ladders.items()
    }
    return {op: rungs for op, rungs in counts.items() if rungs}


def refusals() -> dict[str, dict[str, list[str]]]:
    """Return for each operation and rung why it declined calls."""
    reasons = {
        op: {name: sorted(state.refusals) for name, state in ladder.states.items() if state.refusals}
        for op, ladder in _ladders.items()
    }
    return {op: rungs for op, rungs in reasons.items() if rungs}


def reset() -> None:
    """Forget counts, refusals, failures and sites, as in a new process; overrides stay."""
    for ladder in _ladders.values():
        ladder.states = {rung.name: _State() for rung in ladder.rungs}


def remedy(op: str) -> str:
    """Return the end of a message that names the switches by which an operation's failing rungs are avoided."""
    ladder = _ladders.get(op)
    names = [rung.switch for rung in ladder.rungs if rung.switch] if ladder else []
    return f" (it can be switched off: {' '.join(f'{name}=0' for name in names)})" if names else ""
