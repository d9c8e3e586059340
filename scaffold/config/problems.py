"""What is wrong with a configuration, collected and said in the user's terms."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from scaffold.errors import UserError
from scaffold.wording import count

_NUMBER_AS_TEXT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one key.

    Attributes:
        key: dotted path from the top of the file, e.g. ``runs.tiny.seed``.
        value: what the file says, as it reads in an error message; None where there is no value.
        allowed: what would be right, as a full clause.
        line: line of the file (1-based), 0 when not known.
    """

    key: str
    value: str | None
    allowed: str
    line: int = 0

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {self.value}"
        return f"{self.key}{value}: {self.allowed}"


class ConfigError(UserError):
    """All problems of one configuration at once; ``problems`` holds them singly."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        lines = [f"{source}: {count(len(self.problems), 'problem')}"]
        lines += [f"  {f'line {p.line}: ' if p.line else ''}{p}" for p in self.problems]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, list[Problem]]]:
        return type(self), (self.source, self.problems)


def from_validation(error: ValidationError, prefix: str, known: Iterable[str]) -> list[Problem]:
    """Translate pydantic's errors into problems.

    Args:
        error: what pydantic raised.
        prefix: dotted path of the validated mapping within the file ("" for the top).
        known: the valid keys, for suggestions.
    """
    known = list(known)
    return [_translate(dict(item), prefix, known) for item in error.errors()]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` for the valid key nearest to ``name``, or ""."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]}?" if match else ""


def with_lines(problems: Iterable[Problem], lines: dict[str, int]) -> list[Problem]:
    """Return ``problems`` with the line of each key, or of the nearest enclosing mapping, filled in."""
    return [replace(problem, line=_line(problem.key, lines)) for problem in problems]


def _line(dotted: str, lines: dict[str, int]) -> int:
    if dotted not in lines and dotted.startswith("runs."):
        # The run has the key from the defaults.
        inherited = ".".join(["defaults", *dotted.split(".")[2:]])
        if inherited in lines and inherited != "defaults":
            return lines[inherited]
    while dotted:
        if dotted in lines:
            return lines[dotted]
        dotted = dotted.rpartition(".")[0]
    return 0


def _translate(item: dict[str, Any], prefix: str, known: list[str]) -> Problem:
    parts = [str(part) for part in item["loc"]]
    dotted = ".".join(part for part in (prefix, *parts) if part)
    if item["type"] == "extra_forbidden":
        return Problem(dotted, None, f"unknown key{nearest('.'.join(parts), known)}")
    value = item["input"]
    shown = repr(value)
    if item["type"] == "missing":
        return Problem(dotted, None, "is missing")
    if isinstance(value, str) and _NUMBER_AS_TEXT.fullmatch(value):
        return Problem(dotted, shown, f"YAML reads this as text; write {_with_point(value)}")
    if isinstance(value, list) and not item["type"].startswith(("too_", "list")):
        return Problem(dotted, shown, "a list; this key takes one value (make one run for each)")
    message = item["msg"][0].lower() + item["msg"][1:]
    if item["type"] in ("model_type", "dict_type"):
        message = "must be a mapping"
    if item["type"] == "bool_type":
        message = "input should be true or false"
    return Problem(dotted, shown, message.replace("input should be", "must be"))


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = mantissa.rstrip(".")
    sign = "" if exponent.startswith(("+", "-")) else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{exponent}"
