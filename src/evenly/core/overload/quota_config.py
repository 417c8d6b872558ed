"""Set what customers may use.

SRE book, chapter 21, "Per-Customer Limits".  How it is enforced is in `quota.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.water_filling import DEFAULT_CUSTOMER
from evenly.errors import ConfigError

__all__ = ["MOST_CPUS", "MOST_SECONDS", "QuotaConfig"]

# Limits above this are no limits; costs above it no measurements.
MOST_CPUS = 1e9
MOST_SECONDS = 1e6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """Set the customers' limits, in (normalised) CPU seconds per second for the whole service."""

    limits: Mapping[str, float]
    default_limit: float
    """What all customers that are not in `limits` may use together."""
    criticality_limits: Mapping[str, Mapping[Criticality, float]] = field(default_factory=dict)
    """Further limits of listed customers: what a criticality *and all lower ones* may use together.
    (A limit for one alone could refuse it while a lower one is served.)"""
    burst_seconds: float = 1.0
    """A bucket holds what trickles in during so long."""
    # The book has no numbers.  These leave each criticality a fifth of a second's quota before the
    # next is touched, and CRITICAL_PLUS alone the last tenth.
    keep_ratios: tuple[float, float, float, float] = (0.5, 0.3, 0.1, 0.0)
    """Per criticality, SHEDDABLE first: the part of the bucket kept for higher ones."""
    first_cost_seconds: float = 0.01
    """What a request is expected to cost before the customer has had one."""
    cost_smoothing_ratio: float = 0.05
    """The weight of the newest cost in the customer's expected cost."""
    demand_seconds: float = 5.0
    """Demand is averaged over so long."""

    def __post_init__(self) -> None:
        check.number("default_limit", self.default_limit, 0.0, MOST_CPUS)
        for customer, limit in self.limits.items():
            if customer == DEFAULT_CUSTOMER:
                raise ConfigError("limits must name customers; the nameless one has default_limit")
            check.number(f"limit of {customer!r}", limit, 0.0, MOST_CPUS)
        for customer, limits in self.criticality_limits.items():
            if customer not in self.limits:
                raise ConfigError(f"criticality_limits name {customer!r}, which has no limit")
            for criticality, limit in limits.items():
                if criticality not in tuple(Criticality):
                    raise ConfigError(f"criticality_limits of {customer!r} name {criticality!r}")
                name = f"limit of {customer!r}, {criticality!r}"
                check.number(name, limit, 0.0, self.limits[customer])
        check.positive("burst_seconds", self.burst_seconds)
        if len(self.keep_ratios) != len(Criticality):
            raise ConfigError(f"keep_ratios must be one per criticality, not {self.keep_ratios!r}")
        for ratio in self.keep_ratios:
            check.number("keep_ratios", ratio, 0.0, 0.99)
        if any(lower < higher for lower, higher in pairwise(self.keep_ratios)):
            raise ConfigError(f"keep_ratios must not rise with criticality: {self.keep_ratios!r}")
        check.number("first_cost_seconds", self.first_cost_seconds, 0.0, MOST_SECONDS)
        check.number("cost_smoothing_ratio", self.cost_smoothing_ratio, 0.001, 1.0)
        check.number("demand_seconds", self.demand_seconds, 0.1, 3600.0)
