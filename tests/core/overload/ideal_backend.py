"""A backend that accepts exactly C requests a second, and clients against it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Outcome
from evenly.core.window import TokenBucket
from evenly.testing import ManualClock

ALL = 0b1111


@final
class IdealBackend:
    """Accept `per_second` requests a second, saving up to `seconds` of them; reject at no cost.

    It saves some because a count of what it accepts "per second" needs a stretch to count over:
    random arrivals at 1.1 times the capacity of a backend that saves nothing find it idle now and
    then, and it accepts less than its capacity.
    """

    def __init__(self, per_second: float, *, seconds: float = 1.0) -> None:
        self._room = TokenBucket(per_second, max(1.0, per_second * seconds))

    def serve(self, now: float) -> Outcome:
        return Outcome.OK if self._room.take(now) else Outcome.OVERLOADED

    def admits(self, now: float) -> int:
        return ALL if self._room.level(now) >= 1.0 else 0


@dataclass(kw_only=True)
class Tally:
    requests: int = 0
    sent: int = 0
    accepted: int = 0

    @property
    def sent_ratio(self) -> float:
        return self.sent / self.requests


def offer(
    throttle: Throttle,
    backend: IdealBackend,
    *,
    clock: ManualClock,
    rng: random.Random,
    per_second: float,
    seconds: float,
    reports: bool = False,
    answer_seconds: float = 0.0,
) -> Tally:
    """Send Poisson arrivals through a throttle; each answer takes `answer_seconds`."""
    tally = Tally()
    ends: list[tuple[float, Outcome, int]] = []
    done = 0
    stop_at = clock() + seconds
    while True:
        clock.advance(rng.expovariate(per_second))
        now = clock()
        is_over = now >= stop_at
        while done < len(ends) and (is_over or ends[done][0] <= now):
            end_at, outcome, admits = ends[done]
            if reports:
                throttle.record_report(admits, end_at)
            throttle.record(Criticality.CRITICAL, "", outcome, end_at)
            done += 1
        if is_over:
            return tally
        tally.requests += 1
        if throttle.admit(Criticality.CRITICAL, "", now):
            outcome = backend.serve(now)
            tally.sent += 1
            tally.accepted += outcome is Outcome.OK
            ends.append((now + answer_seconds, outcome, backend.admits(now)))
