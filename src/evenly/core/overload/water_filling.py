"""Divide what is short so that nobody could get more without taking it from someone with less.

SRE book, chapter 21, "Per-Customer Limits": "We aggregate global usage information in real time
from all backend tasks, and use that data to push effective limits to individual backend tasks".
The book names the aim and no algorithm.  Ours is max-min fairness, computed exactly: there is a
water level λ, and everyone gets min(demand, λ).

    Σ min(demand_i, λ) = capacity          λ = ∞ where the capacity is enough for all
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from evenly.core import check

__all__ = ["DEFAULT_CUSTOMER", "effective_limits", "water_fill"]

DEFAULT_CUSTOMER = ""
"""The one account that all customers without a limit of their own share."""

_K = TypeVar("_K")
# More than all CPUs there are, and far enough from the largest float that no sum overflows.
_MOST = 1e15
_EVEN_RATIO = 0.05


def water_fill(capacity: float, demands: Mapping[_K, float]) -> dict[_K, float]:
    """Return the max-min fair share of each demand.

    Nobody gets more than it asks for, and the shares sum to the capacity or to the demands,
    whichever is less; to within the rounding of that sum.  Costs one sort.
    """
    check.number("capacity", capacity, 0.0, _MOST)
    for name, demand in demands.items():
        check.number(f"demand of {name!r}", demand, 0.0, _MOST)
    # Asked first, because then each gets its demand to the last bit.
    if math.fsum(demands.values()) <= capacity:
        return dict(demands)
    left = capacity
    level = 0.0
    asking = len(demands)
    # From the smallest: whoever asks for less than an even part leaves the rest to the others.
    for demand in sorted(demands.values()):
        level = left / asking
        if demand > level:
            break
        left = max(0.0, left - demand)
        asking -= 1
    return {name: min(demand, level) for name, demand in demands.items()}


def effective_limits(
    limits: Mapping[str, float],
    demand: Mapping[str, Mapping[str, float]],
    *,
    capacity: float | None,
    default_limit: float,
) -> dict[str, dict[str, float]]:
    """Return for each backend how much each customer may use there, in CPU seconds per second.

    `limits` are the customers' limits for the whole service, `demand` is what they ask of each
    backend, refused requests included; `capacity` is the service's, `None` if it is not known.
    Customers without a limit are one: `DEFAULT_CUSTOMER`, with `default_limit`.

    1. A customer wants min(limit, total demand).  Grants are the max-min shares of the capacity.
    2. A grant is divided over the backends by max-min over the customer's demands there; of a grant
       that is less than the demand, a twentieth is divided evenly, so that a request to a backend
       where the customer has not been lately is not certain to be refused.
    3. A customer whose demand is met has headroom, limit − demand: half goes to the backends in
       proportion to its demand there, because growth mostly comes where the customer already is,
       and half evenly, so that its first request to another backend finds something.

    A customer's parts sum to its limit, or to its grant if it is short.  What can be used of them
    at the present demand sums to the grants at most, and so never to more than the capacity.
    """
    allowed = {**limits, DEFAULT_CUSTOMER: default_limit}
    asked: dict[str, dict[str, float]] = {
        customer: dict.fromkeys(demand, 0.0) for customer in allowed
    }
    for backend, of_customers in demand.items():
        for customer, wanted in of_customers.items():
            check.number(f"demand of {customer!r} at {backend!r}", wanted, 0.0, _MOST)
            asked[customer if customer in allowed else DEFAULT_CUSTOMER][backend] += wanted
    totals = {customer: math.fsum(parts.values()) for customer, parts in asked.items()}
    wants = {customer: min(limit, totals[customer]) for customer, limit in allowed.items()}
    grants = wants if capacity is None else water_fill(capacity, wants)

    result: dict[str, dict[str, float]] = {backend: {} for backend in demand}
    for customer, parts in asked.items():
        total = totals[customer]
        even = _EVEN_RATIO * grants[customer] if grants[customer] < total else 0.0
        shares = water_fill(grants[customer] - even, parts)
        headroom = allowed[customer] - total if grants[customer] == total else 0.0
        for backend, share in shares.items():
            ratio = 1.0 / len(parts)
            if total > 0.0:
                ratio = (ratio + parts[backend] / total) / 2.0
            result[backend][customer] = share + even / len(parts) + headroom * ratio
    return result
