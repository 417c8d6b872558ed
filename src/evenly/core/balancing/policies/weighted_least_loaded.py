"""Prefer backends with little load for their weight.

What `probing` falls back on where probes get no answer, and a policy in its own right.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.view_heap import ViewHeap
from evenly.core.balancing.weights import WeightConfig, Weights

__all__ = ["WeightedLeastLoaded"]


@final
class WeightedLeastLoaded(Policy):
    """Pick the smallest load / weight, and take weighted turns among equals.

    The turns matter: where many clients share the backends, each client's own load is mostly zero
    everywhere, and without them the heaviest backend would get it all.
    """

    def __init__(self, config: WeightConfig, *, rng: random.Random) -> None:
        self._rng = rng
        self._weights = Weights(config)
        self._heap = ViewHeap()
        self._turn_of: dict[BackendView, float] = {}
        self._turn = 0.0

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend somewhere in its first round.

        A random phase, because client tasks that start together must not all send to the same
        backend first.
        """
        self._weights.welcome(view, now)
        self._turn_of[view] = self._turn + self._rng.random() / view.weight
        self.changed(view)

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        self._heap.discard(view)
        del self._turn_of[view]

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend with the least load for its weight."""
        entry = self._heap.first(avoid)
        if entry is None:
            return None
        view = entry[3]
        turn = self._turn_of[view]
        # Who was busy for long does not make up for the turns that it missed.
        if turn > self._turn:
            self._turn = turn
        self._turn_of[view] = self._turn + 1.0 / view.weight
        self.changed(view)
        return view

    def changed(self, view: BackendView) -> None:
        """Move a backend to where its load puts it."""
        self._heap.put(view, view.load / view.weight, self._turn_of[view])

    def wake(self, now: float) -> None:
        """Learn the weights anew."""
        views = list(self._heap)
        self._weights.refresh(views, now)
        for view in views:
            self.changed(view)
