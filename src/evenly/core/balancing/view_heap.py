"""Backends sorted by a key that changes often."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import final

from evenly.core.balancing.backend import BackendView

__all__ = ["ViewHeap"]


@final
class ViewHeap:
    """Find the backend with the smallest key; among equal keys, the one put in first.

    A changed key pushes a new entry, and an entry that is no longer true is dropped when it comes
    up, so that each step costs O(log n) and leaving costs nothing.
    """

    __slots__ = ("_entries", "_heap", "_tickets")

    def __init__(self) -> None:
        # (key, ticket, view): tickets are unique, so that views are never compared.
        self._heap: list[tuple[float, int, BackendView]] = []
        self._entries: dict[BackendView, tuple[float, int, BackendView]] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BackendView]:
        return iter(self._entries)

    def __contains__(self, view: BackendView) -> bool:
        return view in self._entries

    def key(self, view: BackendView) -> float:
        """Return the key that a backend was put in with."""
        return self._entries[view][0]

    def put(self, view: BackendView, key: float) -> None:
        """Put a backend in, or move it to where its new key belongs."""
        self._tickets += 1
        entry = (key, self._tickets, view)
        heap = self._heap
        if heap and heap[0] is self._entries.get(view):
            self._entries[view] = entry
            heapreplace(heap, entry)
            return
        self._entries[view] = entry
        heappush(heap, entry)
        # Untrue entries may outnumber true ones a few times over before they cost more than this.
        if len(heap) > 4 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def discard(self, view: BackendView) -> None:
        """Take a backend out, if it is there."""
        self._entries.pop(view, None)

    def first(self, avoid: Collection[BackendView] = ()) -> BackendView | None:
        """Return the backend with the smallest key; one in `avoid` only where there is no other."""
        heap = self._heap
        entries = self._entries
        passed: list[tuple[float, int, BackendView]] = []
        found: BackendView | None = None
        while heap:
            entry = heap[0]
            view = entry[2]
            if entries.get(view) is not entry:
                heappop(heap)
            elif view in avoid:
                passed.append(heappop(heap))
            else:
                found = view
                break
        if passed:
            for entry in passed:
                heappush(heap, entry)
            return found or passed[0][2]
        return found
