"""Which connections to open next: those whose time has come, a few at a time; those requested, now.

SRE book, chapter 21, "Load from Connections".  Every step here is O(log n), whatever the number of
backends, because a whole subset may refuse, or lose its connections, at once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import final

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.view_heap import ViewHeap

__all__ = ["Connecting"]


@final
class Connecting:
    """Line up the backends that a transport is to connect to."""

    def __init__(self, *, connecting_max: int) -> None:
        self._connecting_max = connecting_max
        self._later = ViewHeap()
        # Each is lined up once, however often it is said.  OrderedDicts, because taking from the
        # front of a dict leaves holes that iteration steps over.
        self._due: OrderedDict[BackendView, None] = OrderedDict()
        self._demanded: OrderedDict[BackendView, None] = OrderedDict()
        self._under_way: dict[BackendView, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be opened now."""
        return not (self._due or self._demanded)

    @property
    def connect_at(self) -> float:
        """When the next backend is due."""
        entry = self._later.first()
        return math.inf if entry is None else entry[0]

    def schedule(self, view: BackendView, now: float) -> None:
        """Line up a backend for when its connection is due."""
        connect_at = view.health.connect_at
        if connect_at is None or not view.in_subset:
            return
        if connect_at <= now:
            self._due[view] = None
        else:
            self._later.put(view, connect_at)

    def wake(self, now: float) -> None:
        """Line up the backends whose delay is over."""
        while (entry := self._later.first()) is not None and entry[0] <= now:
            self._later.discard(entry[3])
            self.schedule(entry[3], now)

    def demand(self, view: BackendView, now: float) -> None:
        """Line up a backend that a request is to be sent to and that has no connection."""
        if view.health.demand(now):
            self._demanded[view] = None

    def waived(self, view: BackendView) -> None:
        """Learn that nobody waits for a backend any more: it is tried with its delay."""
        self._demanded.pop(view, None)

    def ended(self, view: BackendView) -> None:
        """Learn that a connection was opened or refused, if it was."""
        if not view.health.is_connecting:
            self._under_way.pop(view, None)

    def left(self, view: BackendView) -> None:
        """Learn that a backend left the subset; one under way counts until it has ended."""
        self._later.discard(view)
        self._due.pop(view, None)
        self._demanded.pop(view, None)

    def forget(self, view: BackendView) -> None:
        """Learn that nothing is left of a backend."""
        self.left(view)
        self._under_way.pop(view, None)

    def take(self, now: float) -> list[Backend]:
        """Return what to open now: all that requests wait for, and of the others some."""
        opens: list[Backend] = []
        while self._demanded:
            self._open(self._demanded, opens, now)
        while self._due and len(self._under_way) < self._connecting_max:
            self._open(self._due, opens, now)
        return opens

    def _open(
        self, views: OrderedDict[BackendView, None], opens: list[Backend], now: float
    ) -> None:
        """Open the first, unless it is no longer due."""
        view, _ = views.popitem(last=False)
        if view.in_subset and view.health.is_connection_due(now):
            view.health.connecting()
            self._under_way[view] = None
            opens.append(view.backend)
