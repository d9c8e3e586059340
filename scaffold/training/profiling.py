"""A trace of a few training steps, for Perfetto or chrome://tracing: ``PROFILE_TORCH=1``.

One rank per host records a window of steps, once: it skips PROFILE_TORCH_WAIT steps (at least 1),
discards PROFILE_TORCH_WARMUP, and keeps PROFILE_TORCH_ACTIVE (1, 1 and 3 by default).
PROFILE_TORCH_RECORD_SHAPES and PROFILE_TORCH_WITH_STACK add detail. Profiling never fails a training:
what goes wrong with it is logged.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from scaffold import atomic
from scaffold.config import RunConfig
from scaffold.kernels import switches
from scaffold.parallel import environment
from scaffold.parallel.launch import Context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Window:
    """Which steps are recorded, and how.

    Attributes:
        wait: steps skipped first; at least 1, or the profiler would buffer the whole warm-up.
        warmup: steps recorded and discarded.
        active: steps kept.
        record_shapes: also record the shapes of operands.
        with_stack: also record source lines.
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    record_shapes: bool = False
    with_stack: bool = False


def window(variables: Mapping[str, str] = os.environ) -> Window | None:
    """Return the window that the environment asks for, or None if profiling is off."""
    if not _is_on("PROFILE_TORCH", variables):
        return None
    numbers = {
        name: environment.number(f"PROFILE_TORCH_{name.upper()}", variables) for name in ("wait", "warmup", "active")
    }
    default = Window()
    return Window(
        wait=max(1, default.wait if numbers["wait"] is None else numbers["wait"]),
        warmup=default.warmup if numbers["warmup"] is None else numbers["warmup"],
        active=max(1, default.active if numbers["active"] is None else numbers["active"]),
        record_shapes=_is_on("PROFILE_TORCH_RECORD_SHAPES", variables),
        with_stack=_is_on("PROFILE_TORCH_WITH_STACK", variables),
    )


def trace_name(config: RunConfig, context: Context) -> str:
    """Return the file name of this rank's trace."""
    nodes = -(-context.size // max(context.local_size, 1))
    return (
        f"torch-{socket.gethostname()}-r{context.rank}-N{nodes}-n{context.size}-ps{config.problem_scale}"
        f"-e{config.epochs}-nipf{config.n_instances_used_per_fractal}-{int(time.time())}.json"
    )


class StepProfiler:
    """Records one window of training steps, if asked to and if this is the rank of its host that does.

    Args:
        config: the run, for the trace's name.
        context: this rank.
        directory: where the trace goes.
        wanted: the window, by default from the environment.
    """

    def __init__(self, config: RunConfig, context: Context, directory: Path, wanted: Window | None = None) -> None:
        wanted = wanted or window()
        self._path = directory / trace_name(config, context)
        self._profile: Any = None
        if wanted is not None and context.local_rank == 0:
            self._profile = _guarded(lambda: self._build(wanted))

    def __enter__(self) -> Self:
        if self._profile is not None:
            _guarded(self._profile.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            _guarded(profile.stop)

    def step(self) -> None:
        """Note the end of a training step; called once per training batch."""
        if self._profile is not None:
            _guarded(self._profile.step)

    def _build(self, wanted: Window) -> Any:
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        return profile(
            activities=activities,
            schedule=schedule(wait=wanted.wait, warmup=wanted.warmup, active=wanted.active, repeat=1),
            on_trace_ready=self._export,
            record_shapes=wanted.record_shapes,
            with_stack=wanted.with_stack,
        )

    def _export(self, profile: Any) -> None:
        def write() -> None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = atomic.temporary_path(self._path)
            profile.export_chrome_trace(str(draft))
            atomic.commit(draft, self._path)
            log.warning("trace written: %s (open it in https://ui.perfetto.dev)", self._path)

        _guarded(write)


def _is_on(name: str, variables: Mapping[str, str]) -> bool:
    return variables.get(name, "").strip().lower() in switches.ON


def _guarded(action: Any) -> Any:
    try:
        return action()
    except Exception as error:
        log.warning("profiling failed, training goes on: %s", error)
        return None
