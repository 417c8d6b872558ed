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
    """Remember the requests of one criticality: those accepted, and all others."""

    __slots__ = ("accepts", "failures")

    def __init__(self, window_seconds: float) -> None:
        self.accepts = SlidingCount(window_seconds)
        self.failures = SlidingCount(window_seconds)


@final
class Equation:
    """Apply equation 21-1 to each criticality by its own history."""

    __slots__ = ("_histories", "_multiplier")

    def __init__(self, multiplier: float, window_seconds: float) -> None:
        self._multiplier = multiplier
        self._histories = [_History(window_seconds) for _ in Criticality]

    def accept(self, criticality: Criticality, now: float) -> None:
        """Count a request that was accepted."""
        self._histories[criticality].accepts.add(now)

    def reject(self, criticality: Criticality, now: float) -> None:
        """Count a request that was not, be it here or by a backend."""
        self._histories[criticality].failures.add(now)

    def rejection_probability(self, criticality: Criticality, now: float) -> float:
        """Return how likely a request is to be refused now."""
        history = self._histories[criticality]
        accepts = history.accepts.total(now)
        requests = accepts + history.failures.total(now)
        return rejection_probability(requests, accepts, self._multiplier)

    def is_normal(self, now: float) -> bool:
        """Return whether nothing was rejected within the window."""
        # Not "nothing would be rejected now": forgetting accepts at that point would make the next
        # rejection the only thing known, and its probability 1/2.
        return not any(history.failures.total(now) for history in self._histories)
