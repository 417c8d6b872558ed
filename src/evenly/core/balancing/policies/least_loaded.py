"""Prefer backends with few active requests.  SRE book, chapter 20, "Least-Loaded Round Robin"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy

__all__ = ["LeastLoaded"]


@final
class LeastLoaded(Policy):
    """Take turns among the backends with the least load.

    "Load" is this client task's own view: its active requests to a backend, plus its recent errors
    from it.  Errors count because a backend that fails fast looks idle, and would otherwise draw
    traffic in like a sinkhole.

    One queue per load makes every step constant time.  Two limits are the book's own: the count
    says little about a backend's speed where requests mostly wait, and nothing about other clients'
    requests; "large services using Least-Loaded Round Robin" saw a spread of 2 ×.
    """

    def __init__(self) -> None:
        self._level_of: dict[BackendView, int] = {}
        # OrderedDicts, because taking from the front of a dict leaves holes that iteration steps
        # over.
        self._levels: list[OrderedDict[BackendView, None]] = [OrderedDict()]
        self._lowest = 0  # No level below this one holds a backend.

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend, behind its equals."""
        self._place(view, view.load)

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        del self._levels[self._level_of.pop(view)][view]

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend that has waited longest among those with the least load."""
        levels = self._levels
        lowest = self._lowest
        # Loads move by one request at a time, so this steps over what rose since the last pick.
        while lowest < len(levels) - 1 and not levels[lowest]:
            lowest += 1
        self._lowest = lowest
        first = None
        for level in range(lowest, len(levels)):
            for view in levels[level]:
                if view not in avoid:
                    return view
                first = first or view
        return first

    def changed(self, view: BackendView) -> None:
        """Move a backend whose load changed behind its new equals: that is the round robin."""
        del self._levels[self._level_of[view]][view]
        self._place(view, view.load)

    def _place(self, view: BackendView, load: int) -> None:
        levels = self._levels
        while len(levels) <= load:
            levels.append(OrderedDict())
        levels[load][view] = None
        self._level_of[view] = load
        if load < self._lowest:
            self._lowest = load
