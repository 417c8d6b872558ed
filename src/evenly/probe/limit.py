"""Limit how many questions of one source are answered in a second.

An answer goes to the address that a datagram claims to come from.  The limit bounds what somebody
who writes another's address into his questions can make us send there, and what one client can make
us do.  Windows are fixed seconds, so that one source can have two windows' worth within a second
across their border; that is bounded too, and costs one addition.
"""

from __future__ import annotations

import math
import socket
from typing import final

__all__ = ["AnswerLimit"]

_WINDOW_SECONDS = 1.0
# Sources that find the table full share one count.
_OTHERS = b""


@final
class AnswerLimit:
    """Count answers per source; at most `sources_max` sources are told apart in one window."""

    def __init__(self, answers_per_second: int, sources_max: int) -> None:
        self._most = answers_per_second
        self._sources_max = sources_max
        self._counts: dict[str | bytes, int] = {}
        self._window_at = -math.inf

    def __len__(self) -> int:
        return len(self._counts)

    def admit(self, host: str, now: float) -> bool:
        """Count one question from the address `host`; return whether it may be answered."""
        if now - self._window_at >= _WINDOW_SECONDS:
            self._window_at = now
            self._counts.clear()
        source = _source(host)
        count = self._counts.get(source, 0)
        if count == 0 and len(self._counts) >= self._sources_max:
            source = _OTHERS
            count = self._counts.get(source, 0)
        if count >= self._most:
            return False
        self._counts[source] = count + 1
        return True


def _source(host: str) -> str | bytes:
    # One machine has a whole /64 of IPv6 addresses to send from.  A socket for both families shows
    # IPv4 as ::ffff:192.0.2.1, and those have all their first 64 bits in common.
    if ":" not in host or host.startswith("::ffff:"):
        return host
    return socket.inet_pton(socket.AF_INET6, host)[:8]
