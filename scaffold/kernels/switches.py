"""Environment variables that turn implementations on and off, and their overrides in code."""

from __future__ import annotations

import logging
import os

import torch

KERNELS = (
    "SCAFFOLD_GROUPNORM_TRITON", "SCAFFOLD_GROUPNORM_COMPILE", "SCAFFOLD_STEM_TRITON", "SCAFFOLD_UPSAMPLE_TRITON",
    "SCAFFOLD_POINTWISE_TRITON", "SCAFFOLD_HEAD_TRITON", "SCAFFOLD_SEGMENTATION_TRITON", "SCAFFOLD_ADAM_TRITON",
)  # fmt: skip
"""The switches of all ladders, for those who must name them without a ladder at hand."""

ON, OFF = ("1", "true", "on", "yes"), ("0", "false", "off", "no")

_log = logging.getLogger(__name__)
_overrides: dict[str, bool] = {}
_told: set[tuple[str, str]] = set()


def read(name: str) -> bool | None:
    """Return whether the switch is on: as overridden, else as the environment says, else None.

    A word that is neither in ``ON`` nor in ``OFF`` (in any case) is warned about once, and ignored.
    """
    override = _overrides.get(name)
    if override is not None:
        return override
    word = os.environ.get(name, "").strip().lower()
    if word in ON:
        return True
    # Dynamo cannot trace a logger's call.
    if word and word not in OFF and (name, word) not in _told and not torch.compiler.is_compiling():
        _told.add((name, word))
        _log.warning("%s=%s is ignored; allowed are %s and %s", name, word, "/".join(ON), "/".join(OFF))
    return False if word in OFF else None


def override(name: str, on: bool | None) -> bool | None:
    """Let ``on`` stand for the environment variable ``name`` (None: no longer); return what did before."""
    before = _overrides.pop(name, None)
    if on is not None:
        _overrides[name] = on
    return before
