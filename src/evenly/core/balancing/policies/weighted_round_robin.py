"""Take turns, but more often with capable backends.

SRE book, chapter 20, "Weighted Round Robin"; the weights are made in `weights.py`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.view_heap import ViewHeap
from evenly.core.balancing.weights import WeightConfig, Weights

__all__ = ["WeightedRoundRobin"]


@final
class WeightedRoundRobin(Policy):
    """Pick by earliest deadline first: each pick puts a backend's next turn 1 / weight later.

    That spreads a backend's turns evenly instead of bunching them, in O(log n).  A changed weight
    takes effect at the backend's next turn.
    """

    def __init__(self, config: WeightConfig, *, rng: random.Random) -> None:
        self._rng = rng
        self._weights = Weights(config)
        self._turns = ViewHeap()
        self._turn = 0.0

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend somewhere in its first round.

        A random phase, because client tasks that start together must not all send to the same
        backend first.
        """
        self._weights.welcome(view, now)
        self._turns.put(view, self._turn + self._rng.random() / view.weight)

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        self._turns.discard(view)

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend whose turn is next."""
        entry = self._turns.first(avoid)
        if entry is None:
            return None
        turn, _, _, view = entry
        # A turn that was passed over to avoid its backend comes late; time never goes back.
        if turn > self._turn:
            self._turn = turn
        self._turns.put(view, turn + 1.0 / view.weight)
        return view

    def wake(self, now: float) -> None:
        """Learn the weights anew."""
        self._weights.refresh(list(self._turns), now)
