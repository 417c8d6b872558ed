"""Say how far all rows of a simulation are, from how far each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from evenly.cli.options import counted
from evenly.cli.progress import Tell
from evenly.lab.sim.batch import PlannedRow

__all__ = ["RowProgress"]


@final
class RowProgress:
    """Be told the index of a row and its finished fraction, and tell that of all rows."""

    def __init__(self, rows: Sequence[PlannedRow], tell: Tell) -> None:
        self._rows = rows
        self._tell = tell
        self._fractions = [0.0] * len(rows)
        # Twice the load is twice the requests, and about twice the time.  A row without any
        # still has backends and their timers.
        self._weights = [row.load + 0.1 for row in rows]

    def __call__(self, index: int, fraction: float) -> None:
        """Take note of a row's finished fraction."""
        self._fractions[index] = fraction
        weighed = zip(self._fractions, self._weights, strict=True)
        part = sum(each * weight for each, weight in weighed) / sum(self._weights)
        done = sum(each >= 1.0 for each in self._fractions)
        name = str(self._rows[index]) if fraction >= 1.0 else ""
        self._tell(part, f"{done} of {counted(len(self._rows), 'row')}", name)
