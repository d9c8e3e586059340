"""Registers, stack and shared memory of a Triton kernel, read offline: no GPU is needed.

Triton's own package carries the assembler and the tool that reads its output.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Resources(NamedTuple):
    """What one kernel takes."""

    registers: int
    """A thread."""
    stack_bytes: int
    """A thread; more than 0 means that registers were spilled."""
    shared_bytes: int
    """A program."""


def compile_offline(
    kernel: Any,
    constants: Mapping[str, Any],
    types: Mapping[str, str],
    options: Mapping[str, Any],
    arch: int | str = 90,
    divisible: Collection[str] = (),
) -> Any:
    """Compile a ``triton.jit`` function for a GPU that need not be there.

    Args:
        kernel: the function, not interpreted.
        constants: its ``constexpr`` arguments, and ``None`` for pointers that are absent.
        types: Triton type of arguments that are neither constants nor float32 pointers, such as ``i32``.
        options: ``num_warps``, ``num_stages`` and other options of the compiler.
        arch: CUDA compute capability times ten, or the name of an AMD processor with 64 lanes, ``gfx942``.
        divisible: integer arguments that are multiples of 16, which a launch sees by itself.

    Returns:
        Triton's compiled kernel; ``asm`` has its stages, from ``ttir`` to ``cubin`` or, for AMD, ``amdgcn``.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, aligned = {}, {}
    for index, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else types.get(name, "*fp32")
        if signature[name].startswith("*") or name in divisible:
            aligned[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=aligned)
    target = GPUTarget("hip", arch, 64) if isinstance(arch, str) else GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options=dict(options))


def resources(compiled: Any) -> Resources:
    """Read what a compiled kernel takes.

    Raises:
        RuntimeError: Triton's package lacks ``cuobjdump``, or its output has changed.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [str(_cuobjdump()), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump's output has no register count: {text[:200]!r}")
    return Resources(int(found[1]), int(found[2]), compiled.metadata.shared)


def _cuobjdump() -> Path:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.exists():
        raise RuntimeError(f"{path} is missing: this Triton cannot tell registers offline")
    return path
