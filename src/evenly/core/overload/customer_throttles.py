"""Throttle the customers that are out of quota, and nobody else.

SRE book, chapter 21, "Client-Side Throttling": "When a client detects that a significant portion of
its recent requests have been rejected due to “out of quota” errors, it starts self-regulating".  A
client task may send for many customers, and one customer's quota is no reason to refuse another's
requests.  So each customer that was refused for quota gets a throttle of its own, of the same kind
and with the same state per criticality, until it is back to normal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, final

from evenly.core.criticality import Criticality
from evenly.core.request import Outcome

__all__ = ["CustomerThrottle", "CustomerThrottles"]

# Names of customers come from outside: invented ones must not fill the memory.
MAX_CUSTOMERS: Final = 1000


class CustomerThrottle(Protocol):
    """Throttle one customer by what was said of its quota."""

    def admit(self, criticality: Criticality, now: float) -> bool:
        """Decide whether its quota lets the request leave."""

    def record(self, criticality: Criticality, now: float, *, is_accept: bool) -> None:
        """Learn that a request was accepted, or refused for quota."""

    def is_normal(self, now: float) -> bool:
        """Return whether this throttle knows nothing that a new one would not."""


@final
class CustomerThrottles:
    """Hold one throttle per customer that was lately out of quota; usually none.

    At most 1,000: the customer not seen for longest is forgotten first, and is then sent for as if
    it had quota, until the next refusal.

    Only quota counts here.  An answer from the backend is an accept; that the backend was
    overloaded, or nothing came back, says nothing about the customer.  A request refused here
    counts against the customer alone, and one refused for its criticality does not count here.
    """

    __slots__ = ("_make", "throttles")

    def __init__(self, make: Callable[[float], CustomerThrottle]) -> None:
        self._make = make
        self.throttles: OrderedDict[str, CustomerThrottle] = OrderedDict()
        """By customer, the most recently seen last.  Public so that its owner can skip the call
        while there are none; only this class changes it."""

    def admit(self, criticality: Criticality, customer: str, now: float) -> bool:
        """Decide whether this customer's quota lets the request leave."""
        self._forget(now)
        throttle = self.throttles.get(customer)
        if throttle is None:
            return True
        self.throttles.move_to_end(customer)
        return throttle.admit(criticality, now)

    def record(self, criticality: Criticality, customer: str, outcome: Outcome, now: float) -> None:
        """Learn that a request of this customer was accepted, or OUT_OF_QUOTA."""
        throttles = self.throttles
        throttle = throttles.get(customer)
        is_accept = outcome is not Outcome.OUT_OF_QUOTA
        if throttle is None:
            if is_accept:
                return
            if len(throttles) >= MAX_CUSTOMERS:
                throttles.popitem(last=False)
            throttle = throttles[customer] = self._make(now)
        throttle.record(criticality, now, is_accept=is_accept)
        if is_accept and throttle.is_normal(now):
            del throttles[customer]
        else:
            throttles.move_to_end(customer)

    def throttled(self, now: float) -> tuple[str, ...]:
        """Return the customers with something held against them, the most recently seen last."""
        return tuple(
            customer for customer, throttle in self.throttles.items() if not throttle.is_normal(now)
        )

    def are_throttled(self, now: float) -> bool:
        """Return whether anything is held against any customer."""
        return any(not throttle.is_normal(now) for throttle in self.throttles.values())

    def _forget(self, now: float) -> None:
        # Time heals them too: who has not been seen for long enough is first in line.
        while self.throttles:
            customer = next(iter(self.throttles))
            if not self.throttles[customer].is_normal(now):
                return
            del self.throttles[customer]
