"""Which connections to open next: those whose time has come, a few at a time; those requested, now.

Backends that refuse are tried with a growing delay.  A request that finds them all refusing
shortens it: one of them is tried at once, unless one was tried a second ago.

SRE book, chapter 21, "Load from Connections".  Every step here is O(log n), whatever the number of
backends, because a whole subset may refuse, or lose its connections, at once.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from typing import final

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.view_heap import ViewHeap

__all__ = ["Connecting"]

# While requests find no backend, one connection is tried after so many seconds: a service that is
# back is found within two, and a client task does not storm one that is not.
_WANTED_SECONDS = 1.0
# Drawn anew each time and added, so that client tasks do not try in step.
_WANTED_JITTER_SECONDS = 0.5


@final
class Connecting:
    """Line up the backends that a transport is to connect to."""

    def __init__(self, *, connecting_max: int, rng: random.Random) -> None:
        self._connecting_max = connecting_max
        self._rng = rng
        self._later = ViewHeap()
        # Each is lined up once, however often it is said.  OrderedDicts, because taking from the
        # front of a dict leaves holes that iteration steps over.
        self._due: OrderedDict[BackendView, None] = OrderedDict()
        self._demanded: OrderedDict[BackendView, None] = OrderedDict()
        self._under_way: dict[BackendView, None] = {}
        # Without a connection and not being tried; the one tried longest ago stands first.
        self._refusing: OrderedDict[BackendView, None] = OrderedDict()
        self._is_wanted = False
        self._tried_at = -math.inf
        # When a request may have one tried.  Drawn when the first one asks after each try.
        self._want_at: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be opened now."""
        return not (self._due or self._demanded)

    @property
    def connect_at(self) -> float:
        """When the next backend is due, or may be tried for a request."""
        entry = self._later.first()
        at = math.inf if entry is None else entry[0]
        if self._is_wanted and self._want_at is not None:
            return min(at, self._want_at)
        return at

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
        """Line up the backends whose delay is over, and one that a request wants."""
        if self._is_wanted:
            self.want(now)
        while (entry := self._later.first()) is not None and entry[0] <= now:
            self._later.discard(entry[3])
            self.schedule(entry[3], now)

    def demand(self, view: BackendView, now: float) -> None:
        """Line up a backend that a request is to be sent to and that has no connection."""
        if view.health.demand(now):
            self._demanded[view] = None

    def want(self, now: float) -> None:
        """Learn that a request found no backend: try one that refuses, now or when one may be."""
        if self._want_at is None:
            jitter = _WANTED_JITTER_SECONDS * self._rng.random()
            self._want_at = self._tried_at + _WANTED_SECONDS + jitter
        self._is_wanted = now < self._want_at
        while self._refusing and not self._is_wanted:
            view, _ = self._refusing.popitem(last=False)
            if view.health.demand(now):
                self._demanded[view] = None
                self._note_try(now)
                return

    def refused(self, view: BackendView) -> None:
        """Note a backend that refuses, behind those that were tried before it."""
        self._refusing[view] = None
        self._refusing.move_to_end(view)

    def hope(self, now: float) -> None:
        """Learn that the service is back: try all that refuse, each within the jitter."""
        for view in self._refusing:
            view.health.hope(view.health.spread(now))
            self.schedule(view, now)

    def waived(self, view: BackendView) -> None:
        """Learn that nobody waits for a backend any more: it is tried with its delay."""
        self._demanded.pop(view, None)

    def ended(self, view: BackendView) -> None:
        """Learn that a connection was opened or refused, if it was."""
        if not view.health.is_connecting:
            self._under_way.pop(view, None)

    def left(self, view: BackendView) -> None:
        """Learn that a backend left the subset.

        One under way counts until it has ended, and if it comes back, whoever waits for it waits
        still.
        """
        self._later.discard(view)
        self._refusing.pop(view, None)
        self._due.pop(view, None)

    def forget(self, view: BackendView) -> None:
        """Learn that nothing is left of a backend."""
        self.left(view)
        self._demanded.pop(view, None)
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
            self._refusing.pop(view, None)
            self._note_try(now)
            self._under_way[view] = None
            opens.append(view.backend)

    def _note_try(self, now: float) -> None:
        self._tried_at = now
        self._want_at = None
