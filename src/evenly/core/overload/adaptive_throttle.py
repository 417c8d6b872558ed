"""Throttle as the book does: adaptive throttling, equation 21-1.

SRE book, chapter 21, "Client-Side Throttling".  Kept to the letter, so that `ResponsiveThrottle`
can be compared with it, and for those who want the published behaviour.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.customer_throttles import CustomerThrottles
from evenly.core.overload.equation import Equation
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.request import Cause, Outcome

__all__ = ["AdaptiveThrottle", "AdaptiveThrottleConfig"]

# ruff: noqa: ARG002 -- every throttle has the same signature.


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

    def equation(self) -> Equation:
        """Return the equation with these numbers and no history."""
        return Equation(self.accepts_multiplier, self.window_seconds)


@final
class _CustomerThrottle:
    """Apply the equation to the quota of one customer."""

    __slots__ = ("_equation", "_rng")

    def __init__(self, equation: Equation, rng: random.Random) -> None:
        self._equation = equation
        self._rng = rng

    def admit(self, criticality: Criticality, now: float) -> bool:
        return _admit(self._equation, self._rng, criticality, now)

    def record(self, criticality: Criticality, now: float, *, is_accept: bool) -> None:
        if is_accept:
            self._equation.accept(criticality, now)
        else:
            self._equation.reject(criticality, now)

    def is_normal(self, now: float) -> bool:
        return self._equation.is_normal(now)


@final
class AdaptiveThrottle(Throttle):
    """Reject with the probability of equation 21-1, for each criticality by its own history.

        max(0, (requests − K · accepts) / (requests + 1))

    `requests` includes those rejected here: "as the rate at which the application attempts requests
    to the client grows (relative to the rate at which the backend accepts them), we want to
    increase the probability of dropping new requests".  That makes the load that reaches the
    backend K times what it accepts, whatever is offered.
    """

    __slots__ = ("_customers", "_equation", "_rng", "_whys", "cause")

    is_troubled = True

    def __init__(self, config: AdaptiveThrottleConfig, *, rng: random.Random) -> None:
        self._rng = rng
        self._equation = config.equation()
        self._customers = CustomerThrottles(
            lambda _now: _CustomerThrottle(config.equation(), self._rng)
        )
        # By criticality, how the last ended that was not accepted.
        self._whys = [Cause.REJECTIONS] * len(Criticality)
        self.cause = Cause.REJECTIONS

    def admit(
        self, level: float, customer: str, now: float, seconds_left: float = math.inf
    ) -> bool:
        """Decide by equation 21-1; count the request at once if it is rejected."""
        criticality = Criticality(int(level))
        if self._customers.throttles and not self._customers.admit(criticality, customer, now):
            self.cause = Cause.QUOTA
            return False
        if _admit(self._equation, self._rng, criticality, now):
            return True
        self.cause = self._whys[criticality]
        return False

    def record(
        self,
        criticality: Criticality,
        customer: str,
        outcome: Outcome,
        now: float,
        allowed_seconds: float = math.inf,
    ) -> None:
        """Count a request, and an accept if it was one."""
        if outcome.is_accept:
            self._equation.accept(criticality, now)
            if outcome is Outcome.OUT_OF_QUOTA or self._customers.throttles:
                self._customers.record(criticality, customer, outcome, now)
        elif outcome.is_overload:
            self._equation.reject(criticality, now)
            is_late = outcome is Outcome.TIMEOUT
            self._whys[criticality] = Cause.TIMEOUTS if is_late else Cause.REJECTIONS

    def is_normal(self, now: float) -> bool:
        """Return whether nothing was rejected within the window."""
        return not self._customers.are_throttled(now) and self._equation.is_normal(now)

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show the probability of equation 21-1 for each criticality."""
        return ThrottleSnapshot(
            rejection_probabilities=tuple(
                self._equation.rejection_probability(criticality, now)
                for criticality in Criticality
            ),
            throttled_customers=self._customers.throttled(now),
        )


def _admit(equation: Equation, rng: random.Random, criticality: Criticality, now: float) -> bool:
    probability = equation.rejection_probability(criticality, now)
    if probability <= 0.0 or rng.random() >= probability:
        return True
    # It has no end that could be recorded, so this is where it counts.
    equation.reject(criticality, now)
    return False
