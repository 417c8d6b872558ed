"""Judge whether requests end in timeouts because too much is sent, and for which requests.

A timeout alone says little: one slow method, or a deadline of 3 ms for 5 ms of work, ends so
however little is sent.  So timeouts count only where most of what is sent fails.  That is what
equation 21-1 says with K = 2, whose probability is above 0 where less than half is accepted (SRE
book, chapter 21, "Client-Side Throttling").
"""

from __future__ import annotations

import math
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.core.overload.equation import rejection_probability
from evenly.core.window import SlidingCount

__all__ = ["Timeouts"]

# Most of a few is no evidence.  With 30 % of timeouts, most of 19 requests or more are 10 of them,
# and that is so once in 30 times at the beginning, and then for a few requests.
_FAILURES_MIN: Final = 10
# Deadlines are told apart by powers of two: from 0.2 ms to 1,024 s, and none at all.
_SHORTEST: Final = -12
_LONGEST: Final = 11


@final
class _Level:
    """Count how requests of one criticality ended, from the first timeout on."""

    __slots__ = ("accepts", "late", "rejections")

    def __init__(self, window_seconds: float) -> None:
        self.accepts = SlidingCount(window_seconds)
        self.rejections = SlidingCount(window_seconds)
        self.late: dict[int, SlidingCount] = {}
        """Timeouts, and requests refused here because of them, by how long they could wait."""

    def rejection_probability(self, wait: int, multiplier: float, now: float) -> float:
        late = sum(count.total(now) for key, count in self.late.items() if key >= wait - 1)
        if late <= 0.0:
            return 0.0  # Rejections alone are the business of others.
        accepts = self.accepts.total(now)
        failures = late + self.rejections.total(now)
        if failures < _FAILURES_MIN:
            return 0.0
        return rejection_probability(accepts + failures, accepts, multiplier)


@final
class Timeouts:
    """Refuse requests by equation 21-1 where most of what is sent fails, and some of it times out.

    A timeout speaks of requests that would not wait longer, or not much: up to 2 to 4 times as
    long.  An accept counts for every higher criticality, as with `CustomerGates`, and a criticality
    is refused no less than a higher one.

    It is made at the first timeout and knows nothing from before, so that it costs nothing where
    there are none.
    """

    __slots__ = ("_levels", "_multiplier", "_window_seconds")

    def __init__(self, multiplier: float, window_seconds: float) -> None:
        self._multiplier = multiplier
        self._window_seconds = window_seconds
        self._levels = [_Level(window_seconds) for _ in Criticality]

    def rejection_probability(
        self, criticality: Criticality, seconds_left: float, now: float
    ) -> float:
        """Return how likely a request is to be refused that would wait so long."""
        wait = _wait(seconds_left)
        return max(
            level.rejection_probability(wait, self._multiplier, now)
            for level in self._levels[criticality:]
        )

    def accept(self, criticality: Criticality, now: float) -> None:
        """Count an accept."""
        for level in self._levels[criticality:]:
            level.accepts.add(now)

    def reject(self, criticality: Criticality, now: float) -> None:
        """Count a rejection by a backend."""
        self._levels[criticality].rejections.add(now)

    def be_late(self, criticality: Criticality, allowed_seconds: float, now: float) -> None:
        """Count a timeout of a request that could wait so long, or its refusal here."""
        late = self._levels[criticality].late
        wait = _wait(allowed_seconds)
        count = late.get(wait)
        if count is None:
            count = late[wait] = SlidingCount(self._window_seconds)
        count.add(now)

    def are_over(self, now: float) -> bool:
        """Return whether there were none within the window."""
        return not any(count.total(now) for level in self._levels for count in level.late.values())


def _wait(seconds: float) -> int:
    if not 0.0 < seconds < 1024.0:
        return _LONGEST if seconds > 0.0 else _SHORTEST
    return max(_SHORTEST, math.frexp(seconds)[1])
