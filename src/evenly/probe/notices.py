"""Send notices to many probers: two rounds, and a chunk per turn of the event loop.

A datagram may be lost, so everybody gets a second one a little later.  Ten thousand probers at once
would hold the loop, and the requests in it, for 50 ms or more, so a turn sends to a few hundred.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar, final

__all__ = ["NoticeRounds"]

_ROUNDS = 2
_CHUNK = 500
_ROUND_SECONDS = 0.05
_JITTER_RATIO = 0.2
# When the socket's buffer is full: how long to wait, and how often within one round.  After that
# the network is in a worse state than a missing notice.
_FULL_SECONDS = 0.002
_FULL_MOST = 50

P = TypeVar("P")


@final
class NoticeRounds(Generic[P]):
    """Tell each of a list of probers twice, by `send`.

    `send` takes some probers and returns how many it dealt with: fewer means that the socket's
    buffer is full, and the rest is tried again.
    """

    def __init__(self, send: Callable[[Sequence[P]], int], *, rng: random.Random) -> None:
        self._send = send
        self._rng = rng
        self._probers: Sequence[P] = ()
        self._position = 0
        self._rounds_left = 0
        self._full = 0
        self._handle: asyncio.Handle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, probers: Sequence[P]) -> None:
        """Send the first chunk now, and the rest from the loop; what was left of before is dropped.

        Nothing is lost by that: the caller's new list has everybody who is worth telling, and they
        are told the newer state.
        """
        self.cancel()
        if probers:
            self._probers = probers
            self._rounds_left = _ROUNDS
            self._turn(loop)

    def cancel(self) -> None:
        """Send no more."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._probers = ()
        self._position = self._full = self._rounds_left = 0

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        chunk = self._probers[self._position : self._position + _CHUNK]
        dealt_with = self._send(chunk)
        self._position += dealt_with
        delay_seconds = 0.0
        if dealt_with < len(chunk):
            self._full += 1
            delay_seconds = _FULL_SECONDS
        if self._position >= len(self._probers) or self._full > _FULL_MOST:
            self._rounds_left -= 1
            self._position = self._full = 0
            delay_seconds = _ROUND_SECONDS * (
                1.0 + self._rng.uniform(-_JITTER_RATIO, _JITTER_RATIO)
            )
        if self._rounds_left == 0:
            self.cancel()
            return
        # In an empty context: the one that is current may belong to a request.
        self._handle = loop.call_later(delay_seconds, self._turn, loop, context=Context())
