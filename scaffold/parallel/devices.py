"""Which device a rank computes on, and which backend serves the devices of all ranks."""

from __future__ import annotations

import os

import torch

from scaffold.errors import UserError

HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that hide all GPUs when they are set to nothing."""


def pick_device(local: int, visible: int) -> torch.device:
    """Return the device of the rank ``local`` of a host on which it sees ``visible`` CUDA devices.

    A launcher that binds devices shows each rank only its own, which then has index 0.

    Raises:
        UserError: there are several devices, but none for this rank.
    """
    if visible == 0:
        return torch.device("cpu")
    if visible == 1:
        return torch.device("cuda", 0)
    if local >= visible:
        raise UserError(
            f"local rank {local} has no device: {visible} CUDA devices are visible;"
            f" start at most {visible} ranks per host"
        )
    return torch.device("cuda", local)


def backend_for(kinds: list[str]) -> str:
    """Return the backend of the data group for ranks whose devices are of ``kinds``, in order of rank.

    Raises:
        UserError: some ranks have a CUDA device and others none; training on CPU would hide the fault.
    """
    if len(set(kinds)) > 1:
        raise UserError(
            f"rank {kinds.index('cpu')} sees no CUDA device while rank {kinds.index('cuda')} does;"
            " mend its node, or set CUDA_VISIBLE_DEVICES= to train on CPU everywhere"
        )
    return "nccl" if kinds[0] == "cuda" else "gloo"


def refuse_missing_gpu(device: torch.device, gpus: int) -> None:
    """Refuse the CPU where a GPU was asked for: a benchmark would take hours and tell of another machine.

    Args:
        device: of this rank.
        gpus: that the study asks for, for each rank.

    Raises:
        UserError: it asks for one, PyTorch sees none, and none is hidden on purpose.
    """
    hidden = any(name in os.environ and not os.environ[name].strip() for name in HIDING)
    if gpus and device.type == "cpu" and not hidden:
        raise UserError(
            f"resources.gpus of the study is {gpus}, but PyTorch {torch.__version__} sees no GPU here: see to the"
            " driver and to a build of PyTorch for it, or set CUDA_VISIBLE_DEVICES= (to nothing) to train on the CPU"
        )


def refuse_shared_devices(devices: list[tuple[str, str]]) -> None:
    """Refuse two ranks on one device, which NCCL cannot serve.

    Args:
        devices: (host, unique id of the device) of each rank, in order of rank.

    Raises:
        UserError: two ranks have the same device.
    """
    owners: dict[tuple[str, str], int] = {}
    for rank, device in enumerate(devices):
        if device in owners:
            raise UserError(
                f"ranks {owners[device]} and {rank} share one CUDA device of {device[0]}, which NCCL does not allow;"
                " start as many ranks per host as it has devices"
            )
        owners[device] = rank


def bind(local: int) -> torch.device:
    """Return the device of the rank ``local`` of this host, after making it this process's current one.

    Raises:
        UserError: there are several devices, but none for this rank.
    """
    device = pick_device(local, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def unique_id(device: torch.device) -> str:
    """Return what tells a CUDA device of one host from another; empty for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
