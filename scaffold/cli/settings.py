"""Verbs about settings: check-config, import-config, config-docs."""

from __future__ import annotations

import argparse
from pathlib import Path

from scaffold.cli.common import Verbs, add_verb


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    summary = "Tell everything wrong with a study, or what it would make."
    check = add_verb(verbs, "check-config", _check_config, summary)
    check.add_argument("config", metavar="FILE", help="study file")
    check.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="override a key"
    )

    imported = add_verb(verbs, "import-config", _import_config, "Convert an LLNL ScaFFold configuration to a study.")
    imported.add_argument("config", metavar="FILE", help="LLNL's YAML file")
    imported.add_argument("--output", required=True, metavar="FILE", help="study file to write")

    docs = add_verb(verbs, "config-docs", _config_docs, "Write the manual of all keys and the editor schema.")
    docs.add_argument("directory", metavar="DIR", help="where README.md and study.schema.json go")


def _check_config(arguments: argparse.Namespace) -> None:
    from scaffold.cli.outlook import outlook
    from scaffold.config import Study

    for line in outlook(Study.load(arguments.config, arguments.overrides), Path()):
        print(line)


def _import_config(arguments: argparse.Namespace) -> None:
    from scaffold import atomic
    from scaffold.config import Study, llnl
    from scaffold.config.yamlfile import load_yaml
    from scaffold.errors import UserError

    content = load_yaml(Path(arguments.config))[1]
    if not llnl.looks_like_llnl(content):
        raise UserError(f"{arguments.config} is not an LLNL ScaFFold configuration (a flat mapping of its keys)")
    study, messages = llnl.convert(content)
    for message in messages:
        print(message)
    Study.from_mapping(study, arguments.config)
    atomic.write_yaml(arguments.output, study)
    print(f"wrote {arguments.output}")


def _config_docs(arguments: argparse.Namespace) -> None:
    from scaffold import atomic
    from scaffold.config import manual

    directory = Path(arguments.directory)
    atomic.write_text(directory / "README.md", manual.readme())
    atomic.write_json(directory / "study.schema.json", manual.schema())
