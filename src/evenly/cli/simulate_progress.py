"""Show how far the rows of a simulation are to a person who waits for them, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from evenly.core.clock import Clock
from evenly.sim.batch import PlannedRow

__all__ = ["RowLog", "showing_progress"]

_PATIENCE_SECONDS = 10.0


@contextmanager
def showing_progress(
    console: Console, rows: Sequence[PlannedRow]
) -> Iterator[Callable[[int, float], None]]:
    """Give something to tell the index of a row and its finished fraction.

    A terminal shows one bar and the rows that are done, and nothing of it stays.  A log gets one
    line per row, from when the run has taken longer than anyone stays for.
    """
    if not console.is_terminal:
        yield RowLog(console, rows, clock=time.monotonic)
        return
    bar = _RowBar(rows)
    try:
        with Live(bar.renderable, console=console, transient=True, refresh_per_second=5):
            yield bar
    finally:
        console.show_cursor()  # Ctrl-C while the bar is set up would leave the cursor hidden.


@final
class RowLog:
    """Print a line for each row that finishes after the first ten seconds."""

    def __init__(self, console: Console, rows: Sequence[PlannedRow], *, clock: Clock) -> None:
        self._console = console
        self._rows = rows
        self._clock = clock
        self._began_at = clock()
        self._done = 0

    def __call__(self, index: int, fraction: float) -> None:
        """Take note of a row's finished fraction."""
        if fraction < 1.0:
            return
        self._done += 1
        seconds = self._clock() - self._began_at
        if seconds > _PATIENCE_SECONDS:
            line = f"{self._done} of {len(self._rows)} after {seconds:.0f} s: {self._rows[index]}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@final
class _RowBar:
    """Draw one bar for all rows, with the names of those that are done below it."""

    def __init__(self, rows: Sequence[PlannedRow]) -> None:
        self._rows = rows
        self._fractions = [0.0] * len(rows)
        # Twice the load is twice the requests, and about twice the time.  A row without any
        # still has backends and their timers.
        self._weights = [row.load + 0.1 for row in rows]
        self._names = Text(no_wrap=True, overflow="ellipsis", style="dim")
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            expand=True,
        )
        self._task = self._bar.add_task(self._count(), total=sum(self._weights))
        self.renderable = Group(self._bar, self._names)

    def __call__(self, index: int, fraction: float) -> None:
        self._fractions[index] = fraction
        done = sum(
            part * weight for part, weight in zip(self._fractions, self._weights, strict=True)
        )
        self._bar.update(self._task, completed=done, description=self._count())
        if fraction >= 1.0:
            # The newest first: what does not fit is what was seen before.
            before = f"; {self._names.plain.removeprefix('done: ')}" if self._names else ""
            self._names.plain = f"done: {self._rows[index]}{before}"

    def _count(self) -> str:
        done = sum(fraction >= 1.0 for fraction in self._fractions)
        return f"{done} of {len(self._rows)} rows"
