"""Pick at random: the baseline that every other policy has to beat."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.roster import Roster

__all__ = ["RandomChoice"]


@final
class RandomChoice(Policy):
    """Pick each backend with the same probability, remembering nothing.

    SRE book, chapter 20: round robin performs "significantly better than just selecting backend
    tasks randomly".
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
        """Return any backend."""
        return self._roster.draw(self._rng, avoid)
