"""Say what a figure is: what is run for it, what it shows beside the book's words, how it is drawn.

A figure's jobs run in processes of their own.  Figures that name the same job share its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

if TYPE_CHECKING:  # Drawing is an extra, and slow to import.
    from evenly.lab.sim.figures.canvas import Canvas

__all__ = ["BookFigure", "Comparison", "Job", "Results", "Story", "percent"]

Results: TypeAlias = Mapping[str, Any]
"""What jobs returned, by their names."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Be one piece of work for a process."""

    run: Callable[[int], object]
    """From a seed; a worker finds it by its module and name, or it is a `partial` of such."""
    seconds: float
    """About so long, so that long ones can start first: half or twice as much is near enough."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Set what the book says of one thing beside what we measured."""

    what: str
    book: str
    ours: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Tell what a figure shows."""

    caption: str
    """What is seen, for somebody who has not read the book."""
    comparisons: tuple[Comparison, ...]
    note: str
    """Where ours differs from the book's, and why."""
    scenario: Mapping[str, object]
    """What was run: enough to run it again."""
    numbers: Mapping[str, object]
    """Everything that is drawn."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BookFigure:
    """Be one of the book's figures."""

    number: str
    title: str
    """The book's own."""
    jobs: Mapping[str, Job]
    tell: Callable[[Results], Story]
    draw: Callable[[Canvas, Results], None]
    height: float
    """Of the wide picture, in inches; it is 9 wide."""
    narrow_height: float
    """Of the one for telephones, which is 4.2 wide."""


def percent(ratio: float, decimals: int = 0) -> str:
    """Return a ratio as people read it."""
    return f"{100 * ratio:.{decimals}f}\N{NO-BREAK SPACE}%"
