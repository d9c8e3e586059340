"""``train_stats.csv``: one row per epoch, LLNL's ten columns first, then ours.

The rows live in memory and in every checkpoint; the file is written whole and atomically from them
after each epoch. So it never holds half a row, a second header, or rows of an epoch that was lost.
Numbers are written so that reading them gives the same bits.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from scaffold import atomic
from scaffold.records import COLUMNS, Row


class Statistics:
    """The rows of a training so far.

    Args:
        path: the live file.
        rows: what the checkpoint that training continues from knows, as :meth:`to_json` gave it.
    """

    def __init__(self, path: Path, rows: Iterable[list[Any]] = ()) -> None:
        self._path = path
        self.rows = [Row(*values) for values in rows]

    @property
    def epoch(self) -> int:
        """The last finished epoch; 0 before the first."""
        return self.rows[-1].epoch if self.rows else 0

    @property
    def val_dice(self) -> float:
        """The validation Dice of the last epoch; 0 before the first."""
        return self.rows[-1].val_dice if self.rows else 0.0

    @property
    def total_optimizer_steps(self) -> int:
        """Optimizer steps since the run began."""
        return self.rows[-1].total_optimizer_steps if self.rows else 0

    @property
    def minibatch_time(self) -> float | None:
        """Median of the epochs' medians, seconds; None if no epoch had a full batch."""
        medians = [row.minibatch_duration for row in self.rows if row.minibatch_duration is not None]
        return statistics.median(medians) if medians else None

    def recover_stall(self) -> None:
        """Take the last row's ``checkpoint_stall`` from the live file.

        A checkpoint cannot hold how long its own writing took. A file that is missing, damaged, or not
        as far leaves the row as it is.
        """
        try:
            with open(self._path, newline="") as file:
                found = {line["epoch"]: line["checkpoint_stall"] for line in csv.DictReader(file)}
            self.rows[-1].checkpoint_stall = float(found[str(self.epoch)])
        except (OSError, KeyError, ValueError, IndexError, TypeError):
            return

    def write(self, path: Path | None = None) -> None:
        """Write all rows to ``path``, by default the live file.

        Raises:
            WriteError: the file system refused.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_cell(value) for value in astuple(row)] for row in self.rows)
        atomic.write_text(path or self._path, text.getvalue())

    def to_json(self) -> list[list[Any]]:
        """Return the rows as plain JSON types."""
        return [list(astuple(row)) for row in self.rows]


def _cell(value: float | int | None) -> str:
    return "" if value is None else repr(value)
