"""The summary as a page of the HTML report: the figures of merit in large, the table, the conditions."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd

from scaffold import atomic
from scaffold.reporting.tables import SHOWN, cell

_CONDITIONS = {
    "run": "run",
    "ranks": "ranks",
    "device": "device",
    "hosts": "hosts",
    "backend": "backend",
    "threads": "threads per rank",
    "kernels": "kernels",
    "global_batch": "global batch",
    "parameters": "parameters",
    "dataset": "data set",
    "dataset_digest": "digest of the data",
    "must_match": "comparability class",
    "commit": "commit",
}
_STYLE = """
body { font-family: "DejaVu Sans", Verdana, sans-serif; color: #222; margin: 2em; font-size: 14px; }
h1 { font-size: 20px; } h2 { font-size: 15px; margin-top: 2em; }
p.headline { font-size: 17px; margin: 0.4em 0; }
table { border-collapse: collapse; }
th, td { padding: 0.35em 0.9em; text-align: right; border-bottom: 1px solid #ddd; }
td { max-width: 34em; overflow-wrap: anywhere; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
"""


def write_page(table: pd.DataFrame, output: Path) -> None:
    """Write :func:`page` to ``output``, atomically."""
    atomic.write_text(output, page(table))


def page(table: pd.DataFrame) -> str:
    """Return a self-contained HTML page of a summary (see :func:`scaffold.reporting.tables.summary`)."""
    headlines = "".join(f'<p class="headline">{escape(text)}</p>' for text in table.headline)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Figures of merit</title>'
        f"<style>{_STYLE}</style></head><body><h1>Figures of merit</h1>{headlines}"
        f"<h2>Runs</h2>{_table(table, SHOWN)}"
        f"<h2>Conditions</h2>{_conditions(table)}"
        "<p>Two figures of merit are comparable where comparability class and digest are equal;"
        " <code>scaffold compare A/fom.json B/fom.json</code> names what differs.</p></body></html>\n"
    )


def _table(table: pd.DataFrame, columns: dict[str, str]) -> str:
    head = _row("th", columns.values())
    rows = [_row("td", (cell(row[name]) for name in columns)) for _, row in table.iterrows()]
    return f"<table>{head}{''.join(rows)}</table>"


def _conditions(table: pd.DataFrame) -> str:
    """Return one column a run, since digests are too long to stand side by side with the rest."""
    rows = [_row("td", [title, *(cell(value) for value in table[name])]) for name, title in _CONDITIONS.items()]
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"
