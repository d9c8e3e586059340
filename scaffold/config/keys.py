"""What is known of each configuration key besides its type: stage, comparability, resume, unit, meaning.

Hashes, rerun triggers, ``config/README.md`` and the editor schema all derive from this metadata, so
that a new key needs one declaration and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Stage = Literal["search", "instances", "dataset", "train", "launch"]
"""The stage that a key first changes the result of; ``launch`` keys change no result."""

STAGE_VERSIONS: dict[str, int] = {"search": 1, "instances": 1, "dataset": 1, "train": 1}
"""Code version of each stage. Raise it by hand when the stage's *result* changes: Snakemake does not
see edits inside a package, and this integer is part of every name and hash that depends on the stage."""


@dataclass(frozen=True)
class KeyInfo:
    """Metadata of one key.

    Attributes:
        stage: the stage whose result it defines.
        must_match: whether two figures of merit are comparable only if it is equal in both.
        resume: whether it may change between a checkpoint and the run that resumes from it.
        unit: unit of the value, or "".
        meaning: one sentence for the manual.
    """

    stage: Stage
    must_match: bool
    resume: bool
    unit: str
    meaning: str


def key(
    default: Any,
    meaning: str,
    *,
    stage: Stage,
    must_match: bool,
    resume: bool = False,
    unit: str = "",
    **constraints: Any,
) -> Any:
    """Declare a configuration key: a pydantic field with its :class:`KeyInfo` attached."""
    info = KeyInfo(stage, must_match, resume or stage == "launch", unit, meaning)
    if isinstance(default, list | BaseModel):
        field = Field(default_factory=default.copy, description=meaning, **constraints)
    else:
        field = Field(default, description=meaning, **constraints)
    field.metadata.append(info)
    return field


def stage_version(stage: str) -> int:
    """Return the code version of ``stage``."""
    return STAGE_VERSIONS[stage]


@cache
def iter_keys(model: type[BaseModel]) -> tuple[tuple[str, FieldInfo, KeyInfo], ...]:
    """Return (dotted key, field, metadata) of every key of ``model``, nested ones included.

    Planning asks for them several times for each training of a study.
    """
    return tuple(_keys(model, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo, KeyInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")
            continue
        info = next(item for item in field.metadata if isinstance(item, KeyInfo))
        yield f"{prefix}{name}", field, info


def value_of(model: BaseModel, dotted: str) -> Any:
    """Return the value of the key ``dotted`` ("storage.image")."""
    value: Any = model
    for part in dotted.split("."):
        value = getattr(value, part)
    return value
