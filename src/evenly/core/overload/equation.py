"""Equation 21-1: how likely a client task refuses a request, by its own history.

SRE book, chapter 21, "Client-Side Throttling".  `AdaptiveThrottle` is this and nothing else;
`ResponsiveThrottle` goes by it where nobody reports, and where requests end in timeouts.
"""

from __future__ import annotations

from typing import final

from evenly.core.criticality import Criticality
from evenly.core.window import SlidingCount

__all__ = ["Equation", "rejection_probability"]


def rejection_probability(requests: float, accepts: float, multiplier: float) -> float:
    """Return  max(0, (requests − K · accepts) / (requests + 1))  -- SRE book, equation 21-1."""
    excess = requests - multiplier * accepts
    return excess / (requests + 1.0) if excess > 0.0 else 0.0


@final
class _History:
    """Remember requests and accepts of one criticality."""

    __slots__ = ("accepts", "requests")

    def __init__(self, window_seconds: float) -> None:
        self.requests = SlidingCount(window_seconds)
        self.accepts = SlidingCount(window_seconds)


@final
class Equation:
    """Apply equation 21-1 to each criticality by its own history."""

    __slots__ = ("_histories", "_multiplier")

    def __init__(self, multiplier: float, window_seconds: float) -> None:
        self._multiplier = multiplier
        self._histories = [_History(window_seconds) for _ in Criticality]

    def record(self, criticality: Criticality, now: float, accepts: float) -> None:
        """Count one request and 1 or 0 accepts."""
        history = self._histories[criticality]
        history.requests.add(now)
        # Also where it is 0: told of the same instants, the two have the same buckets, and a
        # request never leaves the history before its accept does.
        history.accepts.add(now, accepts)

    def rejection_probability(self, criticality: Criticality, now: float) -> float:
        """Return how likely a request is to be refused now."""
        history = self._histories[criticality]
        return rejection_probability(
            history.requests.total(now), history.accepts.total(now), self._multiplier
        )

    def is_normal(self, now: float) -> bool:
        """Return whether nothing was rejected within the window."""
        # Not "nothing would be rejected now": forgetting accepts at that point would make the next
        # rejection the only thing known, and its probability 1/2.
        return all(
            history.requests.total(now) == history.accepts.total(now) for history in self._histories
        )
