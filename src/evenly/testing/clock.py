"""A clock that stands still until it is told to move."""

from __future__ import annotations

from typing import final

from evenly.core import check

__all__ = ["ManualClock"]


@final
class ManualClock:
    """Be a `Clock` whose time passes only by `advance`.

    It starts at a large, uneven instant, so that code which confuses durations with instants shows.
    """

    def __init__(self, now: float = 1_000.25) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time that was last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        check.number("seconds", seconds, 0.0, 1e12)
        self._now += seconds
