"""Backends sorted by a key that changes often."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import final

from evenly.core.balancing.backend import BackendView

__all__ = ["ViewHeap"]

# (key, second key, ticket, view): tickets are unique, so that views are never compared.
_Entry = tuple[float, float, int, BackendView]


@final
class ViewHeap:
    """Find the backend with the smallest key, then second key; among equals, the one put in first.

    A changed key pushes a new entry, and an entry that is no longer true is dropped when it comes
    up, so that each step costs O(log n) and leaving costs nothing.
    """

    __slots__ = ("_entries", "_heap", "_tickets")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[BackendView, _Entry] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BackendView]:
        return iter(self._entries)

    def __contains__(self, view: BackendView) -> bool:
        return view in self._entries

    def put(self, view: BackendView, key: float, second: float = 0.0) -> None:
        """Put a backend in, or move it to where its new key belongs."""
        self._tickets += 1
        entry = (key, second, self._tickets, view)
        heap = self._heap
        entries = self._entries
        if heap and heap[0] is entries.get(view):
            entries[view] = entry
            heapreplace(heap, entry)
            return
        entries[view] = entry
        heappush(heap, entry)
        # Untrue entries may outnumber true ones a few times over before they cost more than this.
        if len(heap) > 4 * len(entries) + 64:
            self._heap = list(entries.values())
            heapify(self._heap)

    def discard(self, view: BackendView) -> None:
        """Take a backend out, if it is there."""
        self._entries.pop(view, None)

    def first(self, avoid: Collection[BackendView] = ()) -> _Entry | None:
        """Return (key, second key, ticket, backend) for the smallest key.

        One in `avoid` is returned only where there is no other.
        """
        heap = self._heap
        entries = self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[3]) is not entry:
                heappop(heap)
            elif avoid and entry[3] in avoid:
                return self._first_behind(avoid)
            else:
                return entry
        return None

    def _first_behind(self, avoid: Collection[BackendView]) -> _Entry:
        """Return the first entry that is not to be avoided, where the very first is."""
        heap = self._heap
        passed: list[_Entry] = []
        found: _Entry | None = None
        while heap and found is None:
            entry = heappop(heap)
            if self._entries.get(entry[3]) is entry:
                passed.append(entry)
                if entry[3] not in avoid:
                    found = entry
        for entry in passed:
            heappush(heap, entry)
        return found or passed[0]
