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
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Outcome

__all__ = ["CustomerThrottles"]

# Names of customers come from outside: invented ones must not fill the memory.
MAX_CUSTOMERS: Final = 1000


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

    def __init__(self, make: Callable[[float], Throttle]) -> None:
        self._make = make
        self.throttles: OrderedDict[str, Throttle] = OrderedDict()
        """By customer, the most recently seen last.  Public so that its owner can skip the call
        while there are none; only this class changes it."""

    def admit(self, criticality: Criticality, customer: str, now: float) -> bool:
        """Decide whether this customer's quota lets the request leave."""
        throttle = self.throttles.get(customer)
        if throttle is None:
            return True
        self.throttles.move_to_end(customer)
        return throttle.admit(criticality, customer, now)

    def record(self, criticality: Criticality, customer: str, outcome: Outcome, now: float) -> None:
        """Learn that a request of this customer was accepted, or OUT_OF_QUOTA."""
        throttles = self.throttles
        throttle = throttles.get(customer)
        if outcome is Outcome.OUT_OF_QUOTA:
            if throttle is None:
                if len(throttles) >= MAX_CUSTOMERS:
                    throttles.popitem(last=False)
                throttle = throttles[customer] = self._make(now)
            # To the customer's own throttle its quota is what overload is to the other.
            throttle.record(criticality, customer, Outcome.OVERLOADED, now)
        elif throttle is None:
            return
        else:
            throttle.record(criticality, customer, Outcome.OK, now)
            if throttle.is_normal(now):
                del throttles[customer]
                return
        throttles.move_to_end(customer)
