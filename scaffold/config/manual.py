"""The manual of the configuration keys and the editor schema, written from the models."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic.fields import FieldInfo

from scaffold.config.keys import iter_keys
from scaffold.config.llnl import DROPPED
from scaffold.config.run import RunConfig
from scaffold.config.study import Resources, RunSpec

_INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from scaffold/config/; do not edit. -->

A study file has `defaults:` (any key below) and `runs:` (a name, then keys that differ from the
defaults, and `ranks:`, `seeds:`, `resources:`). Another study *replaces* the default one:

    snakemake --profile profiles/local --configfile config/scale7.yaml

`scaffold check-config FILE` tells everything wrong with a file at once. `--set key=value` overrides a
key on any `scaffold` verb that reads a study, `--config 'defaults={key: value}'` in a Snakemake command.
The command line beats the file, the file beats the default, and nothing else sets a key.

* **stage**: the first stage whose result the key defines; changing it redoes that stage and what
  follows. Keys of stage `launch` change no result and redo nothing.
* **class**: `must match` keys must be equal for two figures of merit to be compared; `free` ones are
  the site's choice.
* **resume**: whether a training may continue from its checkpoint after the key has changed.

YAML 1.1 reads `1e-3` as text: write `1.0e-3`.

## Keys of a run

| key | type | default | unit | stage | class | resume | meaning |
|---|---|---|---|---|---|---|---|
"""

_LAUNCH = """
## Launching a run

| key | type | default | meaning |
|---|---|---|---|
"""

_DROPPED = """
## LLNL's keys that are not kept

`scaffold import-config FILE` converts an LLNL configuration and says what became of each of these.

| key | instead |
|---|---|
"""


def readme() -> str:
    """Return the text of ``config/README.md``."""
    lines = [_INTRODUCTION.rstrip("\n")]
    for dotted, field, info in iter_keys(RunConfig):
        lines.append(
            f"| `{dotted}` | {_type_text(dotted)} | `{_default_text(field)}` | {info.unit} | {info.stage} |"
            f" {'must match' if info.must_match else 'free'} | {'yes' if info.resume else 'no'} | {info.meaning} |"
        )
    lines.append(_LAUNCH.rstrip("\n"))
    for name, kind, default in (("ranks", "positive integers", "[1]"), ("seeds", "integers", "[seed]")):
        lines.append(f"| `{name}` | list of {kind} | `{default}` | {RunSpec.model_fields[name].description} |")
    for name, field in Resources.model_fields.items():
        lines.append(f"| `resources.{name}` | integer | `{_default_text(field)}` | {field.description} |")
    lines.append(_DROPPED.rstrip("\n"))
    lines += [f"| `{name}` | {text} |" for name, text in DROPPED.items()]
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a study file, for editors."""
    spec = RunSpec.model_json_schema()
    definitions = spec["$defs"]
    run = definitions.pop(RunConfig.__name__)
    launch = {name: node for name, node in spec["properties"].items() if name != "config"}
    entry = {**run, "properties": {**launch, **run["properties"]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scaffold study",
        "type": "object",
        "additionalProperties": False,
        "required": ["runs"],
        "properties": {
            "defaults": run,
            "runs": {
                "type": "object",
                "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"},
                "additionalProperties": entry,
                "minProperties": 1,
            },
        },
        "$defs": definitions,
    }


def _type_text(dotted: str) -> str:
    node: dict[str, Any] = RunConfig.model_json_schema()
    definitions = node.get("$defs", {})
    for part in dotted.split("."):
        node = node["properties"][part]
        reference = node.get("$ref") or next((item["$ref"] for item in node.get("allOf", []) if "$ref" in item), None)
        if reference:
            node = definitions[reference.rpartition("/")[2]]
    if "enum" in node:
        return " / ".join(f"`{value}`" for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(item["type"] + _range_text(item) for item in node["anyOf"])
    if node["type"] == "array":
        return f"list of {node['items'].get('type', 'integer')}"
    return str(node["type"]) + _range_text(node)


def _range_text(node: dict[str, Any]) -> str:
    bounds = [
        f"{sign} {node[name]:g}"
        for name, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="))
        if name in node
    ]
    return f" {', '.join(bounds)}" if bounds else ""


def _default_text(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    return yaml.safe_dump(default, default_flow_style=True).removesuffix("...\n").strip()
