"""Reading YAML strictly: no duplicate keys, and the line of each key for error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaffold.errors import UserError

_MERGE = "tag:yaml.org,2002:merge"


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, where YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            # A merge key (<<) may repeat, and only a scalar can be a key at all.
            if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                continue
            name = self.construct_object(key_node, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"key {name!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> tuple[str, Any]:
    """Read a YAML file.

    Returns:
        Its text and its content.

    Raises:
        UserError: the file is missing, unreadable or not YAML; the message names it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return text, yaml.load(text, _StrictLoader)  # noqa: S506 - derives from SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error


def key_lines(text: str) -> dict[str, int]:
    """Return the 1-based line of each dotted key of a YAML text that parses."""
    lines: dict[str, int] = {}

    def visit(node: yaml.Node | None, prefix: str, above: tuple[yaml.Node, ...]) -> None:
        # An alias may stand inside what it stands for.
        if not isinstance(node, yaml.MappingNode) or node in above:
            return
        for key_node, value_node in node.value:
            dotted = f"{prefix}{key_node.value}"
            lines[dotted] = key_node.start_mark.line + 1
            visit(value_node, f"{dotted}.", (*above, node))

    visit(yaml.compose(text, yaml.SafeLoader), "", ())
    return lines
