"""End a connection whose client neither sends nor reads what somebody waits for.

What counts is progress and not speed: a slow client is served for as long as it takes, and one that
has stopped is gone, or holds on to a request and its memory on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

__all__ = ["Stall"]


@final
class Stall:
    """Look now and then whether there is progress, for as long as any is waited for.

    `measure` returns a number that progress changes, or `None` where nothing is waited for.
    """

    __slots__ = ("_before", "_loop", "_measure", "_seconds", "_timer", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        seconds: float,
        measure: Callable[[], float | None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._measure = measure
        self._before: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to look, unless that has begun or nothing is waited for."""
        if self._timer is None:
            self._before = self._measure()
            if self._before is not None:
                self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._measure() == self._before:
            self._transport.abort()
        else:
            self.watch()
