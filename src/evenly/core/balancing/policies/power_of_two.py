"""Draw two, take the better: the well-known cheap approximation of least loaded."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.roster import Roster

__all__ = ["PowerOfTwo"]


@final
class PowerOfTwo(Policy):
    """Draw two backends at random and pick the one with less load.

    M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).  Load is active
    requests plus recent errors, as in `LeastLoaded`, and so the sinkhole is closed here too.
    """

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._roster = Roster()

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend."""
        self._roster.add(view)

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        self._roster.remove(view)

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the less loaded of two different backends; the first drawn if they are equal."""
        roster = self._roster
        size = len(roster)
        if size < 2:
            return roster[0] if size else None
        draw = self._rng.random
        one = int(draw() * size)
        other = int(draw() * (size - 1))
        if other >= one:
            other += 1
        first = roster[one]
        second = roster[other]
        if avoid:
            if first in avoid:
                return roster.draw(self._rng, avoid) if second in avoid else second
            if second in avoid:
                return first
        return second if second.load < first.load else first
