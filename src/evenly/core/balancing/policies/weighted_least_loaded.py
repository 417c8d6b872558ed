"""Prefer backends with little load for their weight.

What `probing` falls back on where probes get no answer, and a policy in its own right.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.view_heap import ViewHeap
from evenly.core.balancing.weights import WeightConfig, Weights

__all__ = ["WeightedLeastLoaded"]


@final
class WeightedLeastLoaded(Policy):
    """Pick the smallest (load + 1) / weight; among equals, the one unchanged for longest."""

    def __init__(self, config: WeightConfig) -> None:
        self._weights = Weights(config)
        self._heap = ViewHeap()

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend."""
        self.changed(view)

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        self._heap.discard(view)

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend with the least load for its weight."""
        return self._heap.first(avoid)

    def changed(self, view: BackendView) -> None:
        """Move a backend to where its load puts it."""
        self._heap.put(view, (view.load + 1.0) / view.weight)

    def wake(self, now: float) -> None:
        """Learn the weights anew."""
        views = list(self._heap)
        self._weights.refresh(views, now)
        for view in views:
            self.changed(view)
