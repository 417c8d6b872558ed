"""When to ask a backend for its load out of band, over one connection that stands.

gRFC A51: a client subscribes to a backend's ORCA reports, and hears one at each interval.  Backends
of ours are not asked: what they say with each response, and by UDP, says more.  They are known by
that, so the question waits for a moment; and it ends once our words are heard after all.

Where it is not offered, it is not asked for again over this connection.  Where it ends, it is asked
for again with gRPC's own back-off.
"""

from __future__ import annotations

import random
from typing import Final, final

from evenly.core.balancing.backend import BackendView

__all__ = ["OutOfBand"]

# How long our own words may take: about an answer to a health check by UDP.
_FIRST_SECONDS: Final = 1.0
# Whoever has spoken our words within so long before the connection stood is taken for one of ours
# still, and looked at again: it may have made way for another process, which is not.
_OURS_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 10.0
# gRPC's connection back-off, which A51 asks for.
_BACKOFF_FIRST_SECONDS: Final = 1.0
_BACKOFF_FACTOR: Final = 1.6
_BACKOFF_MAX_SECONDS: Final = 120.0


@final
class OutOfBand:
    """Decide for one connection, from when it stands until it ends."""

    __slots__ = ("_backoff_seconds", "_is_offered", "_opened_at", "_rng", "_view", "_wait_seconds")

    def __init__(self, view: BackendView, now: float, *, rng: random.Random) -> None:
        self._view = view
        self._rng = rng
        self._opened_at = now
        self._is_offered = True
        self._backoff_seconds = _BACKOFF_FIRST_SECONDS
        self._wait_seconds = _FIRST_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to ask for: it is one of ours, or does not offer it."""
        return not self._is_offered or self._view.reported_at >= self._opened_at

    def wait_seconds(self) -> float | None:
        """Return after how long to ask `may_ask`; `None` is never again."""
        # With jitter: the connections of a process that starts stand all at once.
        return None if self.is_over else self._wait_seconds * self._rng.uniform(0.5, 1.5)

    def may_ask(self, now: float) -> bool:
        """Return whether to subscribe now; if not, ask how long to wait."""
        if self.is_over:
            return False
        self._wait_seconds = _LOOK_SECONDS
        return not now - self._view.reported_at < _OURS_SECONDS

    def heard(self) -> None:
        """Learn that a report came that could be read."""
        self._backoff_seconds = _BACKOFF_FIRST_SECONDS

    def ended(self, *, is_offered: bool) -> None:
        """Learn that what was asked for has ended, or that the backend does not offer it."""
        self._is_offered = is_offered
        self._wait_seconds = self._backoff_seconds
        self._backoff_seconds = min(_BACKOFF_MAX_SECONDS, self._backoff_seconds * _BACKOFF_FACTOR)
