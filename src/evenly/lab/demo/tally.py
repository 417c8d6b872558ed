"""Count what one client's requests came to, exactly: asked = ok + failed + refused + active."""

from __future__ import annotations

import math
from collections import Counter
from contextvars import ContextVar
from typing import Any, Final, final

import evenly
from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.request import Request
from evenly.lab.demo.failure_kinds import Failures
from evenly.lab.demo.plan import WILD

__all__ = ["REFUSALS", "Tally", "application_attempt", "bucket_of", "latency_ms"]

_BASE: Final = 1.1
_LOG_BASE: Final = math.log(_BASE)
# From a microsecond to half an hour.
_LEAST: Final = -70
_MOST: Final = 150

REFUSALS: Final = {
    "throttled": evenly.Throttled,
    "shed": evenly.Overloaded,
    "quota": evenly.QuotaExceeded,
    "no_backend": evenly.NoBackend,
}
"""Where a request was refused, by what was raised."""
_APART: Final = "BEYOND_QUOTA"
application_attempt: ContextVar[int] = ContextVar("evenly_demo_attempt", default=1)
"""Which attempt of its own the application makes: plain ones do."""


def bucket_of(seconds: float) -> int:
    """Return the bucket i of a latency in (1.1^(i-1), 1.1^i] ms."""
    if seconds <= 0.0:
        return _LEAST
    number = math.ceil(math.log(seconds * 1000.0) / _LOG_BASE - 1e-9)
    return min(max(number, _LEAST), _MOST)


def latency_ms(bucket: int) -> float:
    """Return the upper end of a bucket."""
    return _BASE**bucket


@final
class Tally(Observer):
    """Count requests by how they ended, and attempts."""

    def __init__(self) -> None:
        self.attempts = 0
        self.retries = 0
        self._asked: Counter[str] = Counter()
        self._ok: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._failures = Failures()
        self._refused: dict[str, Counter[str]] = {kind: Counter() for kind in REFUSALS}
        self._customers: dict[str, Counter[str]] = {}
        self._latency: Counter[int] = Counter()
        self._active = 0

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        """Count it."""
        del address, request
        self.attempts += 1
        # Here, because an attempt that finds no backend is none.
        if number > 1 or application_attempt.get() > 1:
            self.retries += 1

    def begun(self, level: Criticality, customer: str) -> None:
        """Count a request that begins."""
        self._active += 1
        self._asked[_label(level, customer)] += 1
        self._of(customer)["asked"] += 1

    def ended(
        self, level: Criticality, customer: str, error: Exception | None, seconds: float
    ) -> None:
        """Count a request that has ended, exactly once for each that was asked."""
        self._active -= 1
        label = _label(level, customer)
        if error is None:
            self._ok[label] += 1
            self._of(customer)["ok"] += 1
            self._latency[bucket_of(seconds)] += 1
            return
        for kind, raised in REFUSALS.items():
            if isinstance(error, raised):
                self._refused[kind][label] += 1
                self._of(customer)["refused"] += 1
                return
        self._failed[label] += 1
        self._failures.add(error, label)
        self._of(customer)["failed"] += 1

    def shown(self) -> dict[str, Any]:
        """Return the counts, for a line."""
        return {
            "asked": self._asked,
            "ok": self._ok,
            "failed": self._failed,
            "failed_by": self._failures.counts,
            "refused": self._refused,
            "customers": self._customers,
            "attempts": self.attempts,
            "retries": self.retries,
            "latency": self._latency,
            "active": self._active,
        }

    def _of(self, customer: str) -> Counter[str]:
        known = self._customers.get(customer)
        if known is None:
            known = self._customers[customer] = Counter(asked=0, ok=0, failed=0, refused=0)
        return known


def _label(level: Criticality, customer: str) -> str:
    """Return the criticality, except of a customer that runs wild.

    What it is refused for want of quota says nothing of how its criticality fares.
    """
    return _APART if customer == WILD else level.name
