"""Throttle as the book does: adaptive throttling, equation 21-1.

SRE book, chapter 21, "Client-Side Throttling".  Kept to the letter, so that `ResponsiveThrottle`
can be compared with it, and for those who want the published behaviour.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.customer_throttles import CustomerThrottles
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.request import Outcome
from evenly.core.window import SlidingCount

__all__ = ["AdaptiveThrottle", "AdaptiveThrottleConfig"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThrottleConfig:
    """Set the book's two numbers."""

    accepts_multiplier: float = 2.0
    """K: how many requests reach the backend per accept.  Book: "we generally prefer the 2x
    multiplier"; 1.1 wastes less of the backend and learns later that it has recovered."""
    window_seconds: float = 120.0
    """Book: "the last two minutes of its history"."""

    def __post_init__(self) -> None:
        # Below 1 the client would throttle a backend that accepts everything, down to nothing.
        check.number("accepts_multiplier", self.accepts_multiplier, 1.0, 1000.0)
        check.number("window_seconds", self.window_seconds, 0.001, 86_400.0)


@final
class _History:
    """Remember requests and accepts of one criticality."""

    __slots__ = ("accepts", "requests")

    def __init__(self, window_seconds: float) -> None:
        self.requests = SlidingCount(window_seconds)
        self.accepts = SlidingCount(window_seconds)

    def record(self, now: float, accepts: float) -> None:
        """Count one request and 1 or 0 accepts."""
        self.requests.add(now)
        # Also where it is 0: told of the same instants, the two have the same buckets, and a
        # request never leaves the history before its accept does.
        self.accepts.add(now, accepts)


@final
class AdaptiveThrottle(Throttle):
    """Reject with the probability of equation 21-1, for each criticality by its own history.

        max(0, (requests − K · accepts) / (requests + 1))

    `requests` includes those rejected here: "as the rate at which the application attempts requests
    to the client grows (relative to the rate at which the backend accepts them), we want to
    increase the probability of dropping new requests".  That makes the load that reaches the
    backend K times what it accepts, whatever is offered.
    """

    __slots__ = ("_config", "_customers", "_histories", "_multiplier", "_rng")

    def __init__(self, config: AdaptiveThrottleConfig, *, rng: random.Random) -> None:
        self._config = config
        self._multiplier = config.accepts_multiplier
        self._rng = rng
        self._histories = [_History(config.window_seconds) for _ in Criticality]
        self._customers = CustomerThrottles(self._make_for_customer)

    def admit(self, criticality: Criticality, customer: str, now: float) -> bool:
        """Decide by equation 21-1; count the request at once if it is rejected."""
        if self._customers.throttles and not self._customers.admit(criticality, customer, now):
            return False
        history = self._histories[criticality]
        requests = history.requests.total(now)
        excess = requests - self._multiplier * history.accepts.total(now)
        if excess <= 0.0 or self._rng.random() >= excess / (requests + 1.0):
            return True
        # It has no end that could be recorded, so this is where it counts.
        history.record(now, 0.0)
        return False

    def record(self, criticality: Criticality, customer: str, outcome: Outcome, now: float) -> None:
        """Count a request, and an accept if it was one."""
        if outcome.is_accept:
            self._histories[criticality].record(now, 1.0)
            if outcome is Outcome.OUT_OF_QUOTA or self._customers.throttles:
                self._customers.record(criticality, customer, outcome, now)
        elif outcome.is_overload:
            self._histories[criticality].record(now, 0.0)

    def is_normal(self, now: float) -> bool:
        """Return whether nothing was rejected within the window."""
        # Not "nothing would be rejected now": forgetting accepts at that point would make the next
        # rejection the only thing known, and its probability 1/2.
        return not self._customers.throttles and all(
            history.requests.total(now) == history.accepts.total(now) for history in self._histories
        )

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show the probability of equation 21-1 for each criticality."""
        return ThrottleSnapshot(
            rejection_probabilities=tuple(
                self._rejection_probability(history, now) for history in self._histories
            ),
            throttled_customers=tuple(self._customers.throttles),
        )

    def _rejection_probability(self, history: _History, now: float) -> float:
        requests = history.requests.total(now)
        excess = requests - self._multiplier * history.accepts.total(now)
        return max(0.0, excess / (requests + 1.0))

    def _make_for_customer(self, _now: float) -> Throttle:
        return AdaptiveThrottle(self._config, rng=self._rng)
