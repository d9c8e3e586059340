"""Host side of the kernels: tables of addresses, and the three launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scaffold.kernels.adam import plan
from scaffold.kernels.adam.reference import AdamTensors, Rate, Settings

_SUMMANDS = 4096
"""Partial sums that the one program of ``scalars_kernel`` adds up at a time."""


class _Addresses(NamedTuple):
    """Where tensors lie, (5, T) int64: parameters, gradients, first moments, second moments, step counts.

    Attributes:
        host: pinned; a captured graph copies it anew at each replay, so it must not change after that.
        device: its copy.
    """

    host: Tensor
    device: Tensor


class Workspace:
    """What the launches over one set of tensors need on the device; kept from step to step.

    It must outlive each CUDA graph that captured a step.

    Args:
        sizes: elements of each tensor, which has some.
        device: where they lie.
        tile: sizes of the launches, by default ``plan.TILE``.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device, tile: plan.Tile | None = None) -> None:
        self.sizes, self.device, self.tile = tuple(sizes), device, tile or plan.TILE
        chunks = plan.chunks(sizes, self.tile.chunk)
        self.n_chunks = len(chunks)
        self._sizes = torch.tensor(self.sizes, dtype=torch.int64, device=device)
        self._chunk_tensor = torch.tensor([chunk.tensor for chunk in chunks], dtype=torch.int32, device=device)
        self._chunk_number = torch.tensor([chunk.number for chunk in chunks], dtype=torch.int32, device=device)
        self._partials = torch.empty(self.n_chunks, device=device)
        self._coefficient = torch.empty((), device=device)
        self._scalars = torch.empty((3, len(self.sizes)), device=device)
        self._uploaded: list[int] = []
        self._current: Tensor | None = None
        self._captured: list[_Addresses] = []
        self._spare = self._new_addresses()

    def step(self, tensors: AdamTensors, rate: Rate, settings: Settings) -> None:
        """Clip and update, on the current device; see :func:`~scaffold.kernels.adam.reference.eager`."""
        from scaffold.kernels.adam import kernels

        pointers = [tensor.data_ptr() for part in tensors for tensor in part]
        # Step counts are single elements, which need no wide access.
        aligned = all(pointer % 16 == 0 for pointer in pointers[: 4 * len(self.sizes)])
        addresses = self._upload(pointers)
        shared: dict[str, Any] = {"N_TENSORS": len(self.sizes)}
        chunked = shared | {
            "CHUNK": self.tile.chunk, "BLOCK": self.tile.block, "ALIGNED": aligned, "num_warps": self.tile.num_warps
        }  # fmt: skip
        table = (addresses, self._sizes, self._chunk_tensor, self._chunk_number)
        kernels.norm_kernel[(self.n_chunks,)](*table, self._partials, **chunked)
        kernels.scalars_kernel[(1,)](
            addresses, self._partials, rate.device, self._coefficient, self._scalars, MAX_NORM=settings.max_norm,
            LOG_BETA1=math.log(settings.beta1), LOG_BETA2=math.log(settings.beta2), N_CHUNKS=self.n_chunks,
            BLOCK=_SUMMANDS, TENSORS=1 << (len(self.sizes) - 1).bit_length(), num_warps=8, **shared,
        )  # fmt: skip
        kernels.update_kernel[(self.n_chunks,)](
            *table, self._coefficient, self._scalars,
            BETA1=settings.beta1, BETA2=settings.beta2, EPS=settings.eps, **chunked,
        )  # fmt: skip

    def _upload(self, pointers: list[int]) -> Tensor:
        """Return ``pointers`` on the device, without waiting for it."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # Each graph has gradients of its own. Nothing pinned can be allocated during a capture.
            addresses, self._spare = self._spare, None
            if addresses is None:
                raise RuntimeError("two captures without a step between them that runs")
            self._captured.append(addresses)
            addresses.host.copy_(torch.tensor(pointers).view_as(addresses.host))
            return addresses.device.copy_(addresses.host, non_blocking=True)
        if self._spare is None:
            self._spare = self._new_addresses()
        if self._current is None or pointers != self._uploaded:
            host = torch.tensor(pointers, dtype=torch.int64, pin_memory=self.device.type == "cuda")
            self._current = host.to(self.device, non_blocking=True)
            self._uploaded = pointers
        return self._current

    def _new_addresses(self) -> _Addresses | None:
        if self.device.type != "cuda":
            return None
        host = torch.empty((5, len(self.sizes)), dtype=torch.int64, pin_memory=True)
        return _Addresses(host, torch.empty_like(host, device=self.device))
