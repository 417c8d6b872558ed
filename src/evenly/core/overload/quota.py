"""Hold each customer to the CPU that it was promised.

SRE book, chapter 21, "Per-Customer Limits": limits are in CPU seconds per second, and may sum to
more than there is.  "Criticality": "a backend task will only reject requests of a given criticality
if it's already rejecting all requests of all lower criticalities".

What a request costs is known only when it has been served, so buckets are post-paid:

    admitted if   level > keep_ratio · capacity       with a keep_ratio that falls with criticality
    then          level ← level − expected            expected: the customer's average cost
    at the end    level ← min(capacity, level + expected − cost)

The reservation is there so that requests served at once see one another.  An admission leaves
level > −expected; so a bucket is overdrawn by one request at most, and by what requests cost beyond
expectation.  The trickle goes on meanwhile, so that a stream does not block its customer for long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.overload.quota_config import MOST_CPUS, MOST_SECONDS, QuotaConfig
from evenly.core.overload.water_filling import DEFAULT_CUSTOMER
from evenly.core.window import SlidingCount
from evenly.errors import UsageError

__all__ = ["CustomerSnapshot", "QuotaConfig", "Quotas", "Reservation"]

_BUCKETS = 50  # The window of demand is exact to 2 %.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerSnapshot:
    """Show one customer's account at this backend."""

    limit_per_second: float
    level_seconds: float
    """CPU seconds in the bucket; a debt is negative."""
    reserved_seconds: float
    active: int
    expected_cost_seconds: float
    demand_per_second: float
    refused: int


@final
class _Bucket:
    """One bucket.  Not a `TokenBucket`, which takes nothing back."""

    __slots__ = ("at", "capacity", "floors", "level", "limit", "rate")

    def __init__(self, limit: float, config: QuotaConfig) -> None:
        self.limit = limit
        self.rate = limit
        self.capacity = limit * config.burst_seconds
        self.floors = [ratio * self.capacity for ratio in config.keep_ratios]
        self.level = self.capacity
        self.at = math.inf  # not begun

    def refill(self, now: float) -> None:
        if now > self.at:
            level = self.level + (now - self.at) * self.rate
            self.level = level if level < self.capacity else self.capacity
            self.at = now
        elif self.at == math.inf:
            self.at = now

    def update(self, rate: float, config: QuotaConfig, now: float) -> None:
        self.refill(now)  # Time until now is paid at the old rate.
        self.rate = rate
        self.capacity = rate * config.burst_seconds
        self.floors = [ratio * self.capacity for ratio in config.keep_ratios]
        self.level = min(self.level, self.capacity)  # What no longer fits is lost.


@final
class _Account:
    __slots__ = (
        "active",
        "asked",
        "buckets",
        "expected",
        "least_expected",
        "main",
        "noted_until",
        "refused",
        "reserved",
        "settled",
        "smoothing_ratio",
        "to_note",
        "window_seconds",
    )

    def __init__(self, customer: str, limit: float, config: QuotaConfig) -> None:
        self.main = _Bucket(limit, config)
        further = {
            criticality: _Bucket(most, config)
            for criticality, most in config.criticality_limits.get(customer, {}).items()
        }
        # A request passes its own bucket and those of all higher criticalities: so whatever shuts
        # out a criticality shuts out all lower ones.
        self.buckets = [
            (*(bucket for highest, bucket in further.items() if highest >= criticality), self.main)
            for criticality in Criticality
        ]
        self.expected = config.first_cost_seconds
        self.least_expected = config.first_cost_seconds / 10.0
        self.smoothing_ratio = config.cost_smoothing_ratio
        self.reserved = 0.0
        self.active = 0
        self.settled = 0
        self.refused = 0
        self.asked = SlidingCount(config.demand_seconds, buckets=_BUCKETS)
        self.window_seconds = config.demand_seconds
        self.to_note = 0.0
        self.noted_until = -math.inf

    def note(self, now: float) -> None:
        """Enter what was asked for into the window: once per bucket of it, not per request."""
        self.asked.add(now, self.to_note)
        self.to_note = 0.0
        self.noted_until = now + self.window_seconds / _BUCKETS

    def settle(
        self, buckets: tuple[_Bucket, ...], reserved: float, cost: float, now: float
    ) -> None:
        for bucket in buckets:
            bucket.refill(now)
            level = bucket.level + reserved - cost
            bucket.level = level if level < bucket.capacity else bucket.capacity
        self.active -= 1
        # Nothing is reserved for nobody: what rounding leaves over the sums ends here.
        self.reserved = self.reserved - reserved if self.active else 0.0


@final
class Reservation:
    """Hold what is set aside for one admitted request, until it is settled: exactly once."""

    __slots__ = ("_account", "_buckets", "amount")

    def __init__(self, account: _Account, buckets: tuple[_Bucket, ...], amount: float) -> None:
        self._account: _Account | None = account
        self._buckets = buckets
        self.amount = amount

    def finish(self, cost_seconds: float, now: float, *, is_typical: bool = True) -> None:
        """Charge what the request cost; where that is no such number, what was expected.

        A request that is not typical (cancelled) teaches nothing about what others will cost.
        """
        account = self._account
        if account is None:
            raise UsageError("a reservation was settled twice")
        self._account = None
        if not 0.0 <= cost_seconds <= MOST_SECONDS:
            cost_seconds = self.amount
        elif is_typical:
            account.settled += 1
            # The first costs count alike; the guess made before there was one does not count.
            weight = 1.0 / account.settled
            if weight < account.smoothing_ratio:
                weight = account.smoothing_ratio
            expected = account.expected + weight * (cost_seconds - account.expected)
            # However cheap the last ones were: reserving nothing would let any number in at once.
            account.expected = max(expected, account.least_expected)
        account.settle(self._buckets, self.amount, cost_seconds, now)

    def cancel(self, now: float) -> None:
        """Give it back: the request was refused elsewhere and never ran.

        One that ran and was abandoned is finished, with its cost.
        """
        account = self._account
        if account is None:
            raise UsageError("a reservation was settled twice")
        self._account = None
        account.settle(self._buckets, self.amount, 0.0, now)


@final
class Quotas:
    """Keep one account per listed customer and one for all others; invented names mint nothing."""

    __slots__ = ("_accounts", "_began_at", "_config", "_default")

    def __init__(self, config: QuotaConfig) -> None:
        self._config = config
        limits = {**config.limits, DEFAULT_CUSTOMER: config.default_limit}
        self._accounts = {name: _Account(name, limit, config) for name, limit in limits.items()}
        self._default = self._accounts[DEFAULT_CUSTOMER]
        self._began_at = math.inf

    def admit(self, customer: str, criticality: Criticality, now: float) -> Reservation | None:
        """Reserve the customer's expected cost; `None` if this criticality is out of quota."""
        account = self._accounts.get(customer, self._default)
        expected = account.expected
        account.to_note += expected
        if now >= account.noted_until:
            account.note(now)
            self._began_at = min(now, self._began_at)
        buckets = account.buckets[criticality]
        for bucket in buckets:
            bucket.refill(now)
            if bucket.level <= bucket.floors[criticality]:
                account.refused += 1
                return None
        for bucket in buckets:
            bucket.level -= expected
        account.reserved += expected
        account.active += 1
        return Reservation(account, buckets, expected)

    def seconds_until(self, customer: str, criticality: Criticality, now: float) -> float:
        """Return when a request could be admitted if nobody else asks: for Retry-After.

        `inf` for a limit of 0.  It may be sooner, when requests cost less than is reserved.
        """
        account = self._accounts.get(customer, self._default)
        wait = 0.0
        for bucket in account.buckets[criticality]:
            bucket.refill(now)
            missing = bucket.floors[criticality] - bucket.level
            if missing >= 0.0:
                # At least a step of the clock, because exactly the floor is not enough.
                seconds = missing / bucket.rate if bucket.rate > 0.0 else math.inf
                wait = max(wait, seconds, math.ulp(now))
        return wait

    def demand(self, now: float) -> dict[str, float]:
        """Return what each customer asked for, in CPU seconds per second, refused requests too."""
        for account in self._accounts.values():
            account.note(now)
        window = self._config.demand_seconds
        # A backend that has just started knows a shorter past, down to one bucket of it.
        span = min(window, max(now - self._began_at, window / _BUCKETS))
        return {name: account.asked.total(now) / span for name, account in self._accounts.items()}

    def update_limits(self, effective: Mapping[str, float], now: float) -> None:
        """Take effective limits; customers that are not in it, or wrongly, keep the last."""
        for name, account in self._accounts.items():
            limit = effective.get(name, math.nan)
            if not 0.0 <= limit <= MOST_CPUS:
                continue
            whole = account.main.limit
            # What arrives over a network may not grant more than the configuration does.  A further
            # limit shrinks with the customer's.
            part = min(1.0, limit / whole) if whole > 0.0 else 0.0
            for bucket in account.buckets[Criticality.SHEDDABLE]:
                bucket.update(part * bucket.limit, self._config, now)

    def snapshot(self, now: float) -> dict[str, CustomerSnapshot]:
        """Return every account by its customer's name."""
        demand = self.demand(now)
        for account in self._accounts.values():
            account.main.refill(now)
        return {
            name: CustomerSnapshot(
                limit_per_second=account.main.rate,
                level_seconds=account.main.level,
                reserved_seconds=account.reserved,
                active=account.active,
                expected_cost_seconds=account.expected,
                demand_per_second=demand[name],
                refused=account.refused,
            )
            for name, account in self._accounts.items()
        }
