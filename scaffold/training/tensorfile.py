"""Writing safetensors files atomically.

The library reads them. Its writer is not used: it prepares a file of its own under a random name, which
a killed job leaves behind, readable by its owner alone, and it hides which error the file system gave.
The format is a length, a JSON header, and the tensors' bytes one after another
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from scaffold import atomic

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNMENT = 8


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write CPU tensors and texts to the safetensors file ``path``, atomically.

    Raises:
        WriteError: the file system refused; what stood at ``path`` is intact.
    """
    # The widest types first, so that every tensor is aligned to its own element.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with atomic.write(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(bytes_of(tensors[name]))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a CPU tensor in row-major order, as bytes; a view where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
