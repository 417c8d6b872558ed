"""One heap of events, in order of time, and the clock that they move."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import final

__all__ = ["Events"]


@final
class Events:
    """Call what is due, in order of time; what is due at the same instant, in order of asking."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """The simulated instant, in seconds."""
        self._count = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def clock(self) -> float:
        """Be the clock of everyone in this world."""
        return self.now

    def at(self, at: float, action: Callable[[], None]) -> None:
        """Call `action` at an instant."""
        self._count = count = self._count + 1
        heappush(self._heap, (at, count, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` in so many seconds."""
        self._count = count = self._count + 1
        heappush(self._heap, (self.now + seconds, count, action))

    def run(self, until: float) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heappop(heap)
            action()
        self.now = max(self.now, until)
