"""A heap of events on a manual clock: what both small worlds run on."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from evenly.testing import ManualClock


class Events:
    """Call what is due, in order of time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.clock() + seconds, self._count, event))

    def run(self, seconds: float) -> None:
        end = self.clock() + seconds
        while self._heap and self._heap[0][0] <= end:
            at, _, event = heapq.heappop(self._heap)
            self.clock.advance(max(0.0, at - self.clock()))
            event()
        self.clock.advance(max(0.0, end - self.clock()))
