"""A discovery that says what a test tells it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

from evenly.core.balancing.backend import Backend


class Told:
    """Say what it is told, from any thread."""

    def __init__(self) -> None:
        self._lists: list[Sequence[Backend]] = []
        self._indices: dict[str, int] = {}
        self.is_watched = threading.Event()

    def tell(self, *addresses: str) -> None:
        for address in addresses:
            self._indices.setdefault(address, len(self._indices))
        self._lists.append([Backend(address, self._indices[address]) for address in addresses])

    async def watch(self) -> AsyncIterator[Sequence[Backend]]:
        self.is_watched.set()
        told = 0
        while True:
            for backends in self._lists[told:]:
                yield backends
                told += 1
            await asyncio.sleep(0.005)
