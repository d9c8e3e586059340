"""Kernels compiled for an MI300, on a machine without one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def assembly(kernel: Any, constants: Mapping[str, Any], types: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Return a ``triton.jit`` function as gfx942 assembly; for the arguments see ``resources.compile_offline``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants))
    return triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options=dict(options)).asm["amdgcn"]


def spilled_registers(text: str) -> int:
    """Return the number of vector registers that one kernel's assembly says are spilled."""
    (count,) = re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)
    return int(count)
