"""Bring together what customers ask of all backends, and hand out effective limits.

SRE book, chapter 21, "Per-Customer Limits".  A backend reports its demand about once a second and
takes its limits from the answer; when there is none, it holds the last.  In one process (one
worker, the simulator, a test) memory is enough to do it; a fleet needs a store in between, behind
the same two methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, final

from evenly.core import check
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.overload.water_filling import effective_limits

__all__ = ["MemoryAggregator", "QuotaAggregator"]


class QuotaAggregator(Protocol):
    """Turn the demand of all backends into the limits of each."""

    def report(self, backend: str, demand: Mapping[str, float], now: float) -> None:
        """Take what customers ask of a backend now (`Quotas.demand`)."""

    def limits_of(self, backend: str, now: float) -> Mapping[str, float]:
        """Return what its customers may use there (`Quotas.update_limits`); empty: unknown."""


@final
class MemoryAggregator:
    """Aggregate within one process."""

    __slots__ = ("_capacity", "_config", "_demand", "_expiry_seconds", "_limits", "_reported_at")

    def __init__(
        self, config: QuotaConfig, *, capacity: float | None = None, expiry_seconds: float = 10.0
    ) -> None:
        if capacity is not None:
            check.positive("capacity", capacity)
        check.positive("expiry_seconds", expiry_seconds)
        self._config = config
        self._capacity = capacity
        self._expiry_seconds = expiry_seconds
        self._demand: dict[str, Mapping[str, float]] = {}
        self._reported_at: dict[str, float] = {}
        self._limits: dict[str, dict[str, float]] | None = None

    def report(self, backend: str, demand: Mapping[str, float], now: float) -> None:
        """Take what customers ask of a backend now."""
        self._demand[backend] = dict(demand)
        self._reported_at[backend] = now
        self._limits = None

    def limits_of(self, backend: str, now: float) -> Mapping[str, float]:
        """Return what customers may use at this backend; empty if it has not reported lately."""
        oldest = now - self._expiry_seconds
        gone = [name for name, reported_at in self._reported_at.items() if reported_at < oldest]
        for name in gone:  # Its share belongs to the others from now on.
            del self._demand[name], self._reported_at[name]
            self._limits = None
        if self._limits is None:
            self._limits = effective_limits(
                self._config.limits,
                self._demand,
                capacity=self._capacity,
                default_limit=self._config.default_limit,
            )
        return self._limits.get(backend, {})
