"""Watch a run from outside, and say which invariant it broke.

Nothing here decides anything or is asked by anyone; a checker believes only what it has seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import final

from evenly.core.criticality import Criticality
from evenly.sim.recorder import Second
from evenly.sim.scenario import Scenario

__all__ = ["Checkers"]

# Beyond so many of a kind, more of the same says nothing new.
_SHOWN = 3
# Two success ratios are out of order when chance would do that less often than so: a swarm of 1,000
# runs compares about 100,000 pairs.
_CHANCE = 1e-9


@final
class Checkers:
    """Collect the violations of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self._attempts_allowed = scenario.client_task.retry.attempts
        self._budget_ratio = scenario.client_task.retry.budget_ratio
        self._begun = 0
        self._ended = 0
        self._requests: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._violations: list[str] = []

    @property
    def open_calls(self) -> int:
        """Return how many requests have begun and not ended."""
        return self._begun - self._ended

    def violated(self, kind: str, what: str) -> None:
        """Note a violation; of each kind only the first few in full."""
        self._seen[kind] += 1
        if self._seen[kind] <= _SHOWN:
            self._violations.append(f"{kind}: {what}")

    def violations(self) -> tuple[str, ...]:
        """Return what was found, and how much more of the same there was."""
        more = [
            f"{kind}: {count - _SHOWN} more" for kind, count in self._seen.items() if count > _SHOWN
        ]
        return (*self._violations, *more)

    def begun(self) -> None:
        """See a request begin."""
        self._begun += 1

    def ended(self, now: float, *, twice: bool) -> None:
        """See a request end."""
        self._ended += 1
        if twice:
            self.violated("begun = finished", f"a request ended twice at {now:.3f} s")

    def sent(self, client: str, number: int, now: float) -> None:
        """See an attempt leave a client task."""
        if number == 1:
            self._requests[client] += 1
            return
        if number > self._attempts_allowed:
            self.violated("attempts", f"{client} sent attempt {number} at {now:.3f} s")
        self._retries[client] += 1
        # The budget starts at 3 and gains a tenth per request (book: 10 %).
        allowed = self._budget_ratio * self._requests[client] + 3.0
        if self._retries[client] > allowed + 1e-6:
            self.violated(
                "retry budget",
                f"{client} had sent {self._retries[client]} retries for {self._requests[client]}"
                f" requests at {now:.3f} s",
            )

    def sent_to_lame_duck(self, client: str, backend: str, since: float, now: float) -> None:
        """See an attempt sent to a lame duck that its client task must have heard of."""
        self.violated(
            "lame duck",
            f"{client} sent to {backend} at {now:.4f} s, a lame duck since {since:.4f} s, though"
            " another backend was healthy",
        )

    def finished(self, actives: Sequence[tuple[str, int]], seconds: Sequence[Second]) -> None:
        """See the world at its end, when nothing is under way."""
        if self._begun != self._ended:
            self.violated(
                "begun = finished", f"{self._begun} requests began and {self._ended} ended"
            )
        for name, active in actives:
            if active:
                self.violated("active counts", f"{name} still counts {active} active requests")
        self._check_order(seconds)

    def _check_order(self, seconds: Sequence[Second]) -> None:
        """See whether in any second a criticality fared worse than a lower one."""
        names = list(Criticality)
        for at, second in enumerate(seconds):
            for higher in names[1:]:
                for lower in names[:higher]:
                    if _inversion_chance(second, lower, higher) < _CHANCE:
                        self.violated(
                            "criticality inversion",
                            f"in second {at} {_ratio(second, higher)} of {higher.name} and"
                            f" {_ratio(second, lower)} of {lower.name} succeeded",
                        )


def _ratio(second: Second, criticality: Criticality) -> str:
    return f"{second.succeeded[criticality]} of {second.offered[criticality]}"


def _inversion_chance(second: Second, lower: int, higher: int) -> float:
    """Return how likely the higher criticality fares so much worse if failures know none.

    Fisher's exact test: of the failures of both, so many or more fall on the higher one.
    """
    n, m = second.offered[lower], second.offered[higher]
    failed_lower = n - second.succeeded[lower]
    failed = m - second.succeeded[higher]
    if failed * n <= failed_lower * m:
        return 1.0
    total = failed + failed_lower
    whole = math.comb(n + m, total)
    tail = sum(math.comb(m, k) * math.comb(n, total - k) for k in range(failed, min(m, total) + 1))
    return tail / whole
