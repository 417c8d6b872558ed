"""Show how far a command is to a person who waits for it, on standard error.

One rule for all commands: a terminal shows a bar, of which nothing stays; a log gets a line after
ten seconds, so that what takes less leaves none, and then whenever a third more time has passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

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

__all__ = ["ProgressLog", "Tell", "showing_progress"]

Tell: TypeAlias = Callable[[float, str, str], None]
"""Is told the finished fraction, how many of how many that is, and what was just done, if any."""

_FIRST_SECONDS = 10.0
_LATER_RATIO = 4.0 / 3.0


@contextmanager
def showing_progress() -> Iterator[Tell]:
    """Give something to tell how far it is."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield ProgressLog(console, clock=time.monotonic)
        return
    bar = _ProgressBar()
    # Where both are the terminal, what is printed meanwhile goes above the bar.
    has_same_terminal = sys.stdout.isatty()
    try:
        with Live(
            bar.renderable,
            console=console,
            transient=True,
            refresh_per_second=5,
            redirect_stdout=has_same_terminal,
        ):
            yield bar
    finally:
        console.show_cursor()  # Ctrl-C while the bar is set up would leave the cursor hidden.


@final
class ProgressLog:
    """Print a line now and then, ever more seldom."""

    def __init__(self, console: Console, *, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began_at = clock()
        self._next_at = self._began_at + _FIRST_SECONDS

    def __call__(self, fraction: float, count: str, done: str) -> None:
        """Take note of how far it is."""
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = self._began_at + _LATER_RATIO * (now - self._began_at)
        line = f"{count}, {fraction:.0%}, after {now - self._began_at:.0f} s"
        if done:
            line += f": {done}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@final
class _ProgressBar:
    """Draw one bar for everything, with the names of what is done below it."""

    def __init__(self) -> None:
        self._names = Text(no_wrap=True, overflow="ellipsis", style="dim")
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self.renderable = Group(self._bar, self._names)

    def __call__(self, fraction: float, count: str, done: str) -> None:
        self._bar.update(self._task, completed=fraction, description=count)
        if done:
            # The newest first: what does not fit is what was seen before.
            before = f"; {self._names.plain.removeprefix('done: ')}" if self._names else ""
            self._names.plain = f"done: {done}{before}"
