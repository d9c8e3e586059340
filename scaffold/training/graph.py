"""Steps as CUDA graphs: launched as one, so that the device never waits for the host.

A graph repeats the very launches of the step that was captured, on the same addresses. So the step must
not wait for the device, must find its batch in buffers that stay, and must keep all it changes where it
is. That it then gives the same result is not assumed but tried: the first step of each batch shape is taken
twice, op by op and from its graph, and only if both leave the same bits is the graph used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from scaffold.kernels import switches
from scaffold.training.adam import Adam

SWITCH = "SCAFFOLD_CUDA_GRAPH"

Inputs = Mapping[str, Tensor]
Outputs = tuple[Tensor, ...]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

log = logging.getLogger("scaffold")


class Device:
    """The GPU's part: capturing, and the memory that all graphs of a training share.

    One graph runs at a time and copies its outputs out, so what one uses in passing the next may use too.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Run the block on the stream of the capture, so that its libraries are ready there."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, function: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Record the launches of ``function``; return what repeats them, and what they write to.

        Unused memory is given back first, so that the graph's activations do not lie beside those of the
        rehearsal.
        """
        graph = torch.cuda.CUDAGraph()
        # A capture that fails leaves its stream the current one, and its pool unusable.
        pool, self._pool = self._pool, torch.cuda.graph_pool_handle()
        # The loader's thread pins memory meanwhile, which a capture of the usual mode would forbid.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self.device)),
            torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            outputs = function()
        self._pool = pool
        return graph.replay, outputs


class Graphs:
    """One function of a batch, replayed from a graph for each shape of batch.

    Args:
        name: of the function, for messages.
        device: captures; or why the function is never captured.
        changes: returns the tensors that the function changes; they never move.
        prepare: brings up to date what a replay reads and does not compute.
    """

    def __init__(
        self,
        name: str,
        device: Device | str,
        changes: Callable[[], Sequence[Tensor]] = lambda: (),
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._device, self._changes, self._prepare = device, changes, prepare
        self._captured: dict[Any, _Captured] = {}

    @property
    def status(self) -> str:
        """What became of it, for the record: "captured", "not used", or "off: " and why."""
        if isinstance(self._device, str):
            return f"off: {self._device}"
        return "captured" if self._captured else "not used"

    def run(self, function: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        """Call ``function``, the same at each call, or replay it.

        Args:
            function: of tensors on the device; returns tensors that no gradient hangs on.
            inputs: tensors on the host, best pinned, or on the device.

        Returns:
            Tensors that are the caller's own.
        """
        if isinstance(self._device, str):
            return function(inputs)
        self._prepare()
        key = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(inputs.items()))
        captured = self._captured.get(key)
        if captured is not None:
            return captured(inputs)
        return self._first(self._device, key, function, inputs)

    def release(self) -> None:
        """Give the graphs' memory back; the next call would capture anew."""
        self._captured.clear()

    def _first(self, device: Device, key: Any, function: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        buffers = {name: tensor.to(device.device, copy=True) for name, tensor in inputs.items()}
        before = _host_copies(self._changes())
        with device.rehearsal():
            outputs = function(buffers)
        told, after = _host_copies(outputs), _host_copies(self._changes())
        _write(self._changes(), before)
        try:
            captured = _Captured(buffers, *device.capture(lambda: function(buffers)))
            replayed = captured(inputs)
            if _same_bits([*replayed, *self._changes()], [*told, *after]):
                self._captured[key] = captured
                return replayed
            refusal = "a replayed step differed from the step that was captured"
        # Whatever it is, exhausted memory too: op by op the step can be taken, as the rehearsal has shown.
        except Exception as error:
            root = _root(error)
            refusal = f"{type(root).__name__}: {_first_line(root)}"
        self._device = refusal
        self._captured.clear()
        log.warning("%s goes on without CUDA graphs: %s (%s=0 avoids the attempt)", self.name, refusal, SWITCH)
        _write(self._changes(), after)
        return outputs


class StepGraphs(NamedTuple):
    """The graphs of a training.

    Attributes:
        training: of training steps.
        validation: of the scoring of validation batches.
    """

    training: Graphs
    validation: Graphs

    @classmethod
    def off(cls, reason: str) -> StepGraphs:
        """Return graphs that are never captured."""
        return cls(Graphs("training", reason), Graphs("validation", reason))

    @classmethod
    def of(cls, network: nn.Module, optimizer: Optimizer, device: torch.device) -> StepGraphs:
        """Return the graphs of ``network``, or why there are none.

        Args:
            network: what is trained, as it is trained.
            optimizer: of its parameters.
            device: where they lie.
        """
        if device.type != "cuda":
            return cls.off(f"none on device {device.type}")
        if switches.read(SWITCH) is False:
            return cls.off(f"{SWITCH} is off")
        if isinstance(network, DistributedDataParallel):
            # Its all-reduce runs on streams and is watched by threads of its own.
            return cls.off("several ranks average gradients in the step")
        if not isinstance(optimizer, Adam):
            return cls.off(f"{type(optimizer).__name__} reads its learning rate from the host")
        captures = Device(device)
        training = Graphs(
            "training", captures, lambda: [*network.parameters(), *optimizer.state_tensors()], optimizer.publish_rate
        )
        return cls(training, Graphs("validation", captures))

    def status(self) -> dict[str, str]:
        """Return what became of each, by name."""
        return {graphs.name: graphs.status for graphs in self}

    def release(self) -> None:
        """Give the graphs' memory back."""
        for graphs in self:
            graphs.release()


class _Captured:
    def __init__(self, buffers: dict[str, Tensor], replay: Callable[[], None], outputs: Outputs) -> None:
        self._buffers, self._replay, self._outputs = buffers, replay, outputs

    def __call__(self, inputs: Inputs) -> Outputs:
        for name, buffer in self._buffers.items():
            buffer.copy_(inputs[name], non_blocking=True)
        self._replay()
        return tuple(output.clone() for output in self._outputs)


def _host_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    # On the device they would take memory just when most is in use.
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _same_bits(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    return all(
        torch.equal(tensor.detach().cpu().view(_BITS[tensor.itemsize]), value.view(_BITS[value.itemsize]))
        for tensor, value in zip(tensors, values, strict=True)
    )


def _root(error: BaseException) -> BaseException:
    """Return what happened first, of what a traceback would show: ending a capture that has failed fails too."""
    before = error.__cause__
    if before is None and not error.__suppress_context__:
        before = error.__context__
    return error if before is None else _root(before)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
