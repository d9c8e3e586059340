"""What a kernel takes that is compiled for an MI300, on a machine without one."""

from __future__ import annotations

import re
from typing import Any

PROCESSOR = "gfx942"
SHARED_BYTES = 64 * 1024
"""Of a compute unit, and the most that one program can have."""


def spilled_registers(compiled: Any) -> int:
    """Return the number of vector registers that a kernel's assembly says are spilled."""
    (count,) = re.findall(r"\.vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"])
    return int(count)
