from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.quota import QuotaConfig, Quotas, Reservation
from evenly.core.overload.quota_aggregator import MemoryAggregator, QuotaAggregator
from evenly.core.overload.water_filling import DEFAULT_CUSTOMER
from evenly.errors import ConfigError, UsageError

SHEDDABLE, SHEDDABLE_PLUS, CRITICAL, CRITICAL_PLUS = Criticality


BASE = QuotaConfig(limits={"gmail": 4.0}, default_limit=2.0, first_cost_seconds=1.0)


def admit(quota: Quotas, customer: str, now: float, criticality: Criticality) -> Reservation:
    reservation = quota.admit(customer, criticality, now)
    assert reservation is not None
    return reservation


def spend(quota: Quotas, customer: str, cost: float, now: float) -> None:
    admit(quota, customer, now, CRITICAL_PLUS).finish(cost, now)


def test_a_bucket_holds_a_second_of_the_limit_and_is_overdrawn_by_one_request() -> None:
    quota = Quotas(BASE)  # 4 in the bucket, each request expected to cost 1
    for _ in range(4):
        admit(quota, "gmail", 0.0, CRITICAL_PLUS)
    assert quota.admit("gmail", CRITICAL_PLUS, 0.0) is None  # 0 left
    assert quota.admit("gmail", CRITICAL_PLUS, 0.125) is not None  # 0.5 left, then −0.5
    assert quota.admit("gmail", CRITICAL_PLUS, 0.25) is None

    snapshot = quota.snapshot(0.25)["gmail"]
    assert (snapshot.active, snapshot.reserved_seconds, snapshot.refused) == (5, 5.0, 2)


def test_a_bucket_holds_as_many_seconds_as_it_is_told() -> None:
    quota = Quotas(replace(BASE, burst_seconds=3.0))
    assert quota.snapshot(0.0)["gmail"].level_seconds == 12.0
    quota.update_limits({"gmail": 2.0}, 0.0)

    assert quota.snapshot(0.0)["gmail"].level_seconds == 6.0


def test_a_request_that_cost_nothing_counts_in_the_average() -> None:
    quota = Quotas(BASE)
    spend(quota, "gmail", 0.5, 0.0)
    spend(quota, "gmail", 0.0, 0.0)

    assert quota.snapshot(0.0)["gmail"].expected_cost_seconds == 0.25


def test_the_expected_cost_never_falls_below_a_tenth_of_the_first() -> None:
    quota = Quotas(BASE)
    for _ in range(100):
        spend(quota, "gmail", 0.0, 0.0)

    assert quota.snapshot(0.0)["gmail"].expected_cost_seconds == 0.1
    # Free or not, 4 / 0.1 = 40 at once is all (and one more that overdraws, by rounding).
    admitted = [quota.admit("gmail", CRITICAL_PLUS, 0.0) is not None for _ in range(1000)]
    assert admitted.count(True) in {40, 41}


def test_a_request_that_is_not_typical_is_charged_and_teaches_nothing() -> None:
    quota = Quotas(BASE)
    admit(quota, "gmail", 0.0, CRITICAL).finish(0.125, 0.0, is_typical=False)
    snapshot = quota.snapshot(0.0)["gmail"]
    assert (snapshot.level_seconds, snapshot.expected_cost_seconds) == (3.875, 1.0)

    # Nor does it count as the first: the guess still gives way entirely to the next.
    spend(quota, "gmail", 0.5, 0.0)
    assert quota.snapshot(0.0)["gmail"].expected_cost_seconds == 0.5


def test_a_request_that_cost_less_gives_the_rest_back() -> None:
    quota = Quotas(BASE)
    admit(quota, "gmail", 0.0, CRITICAL).finish(0.25, 0.0)

    snapshot = quota.snapshot(0.0)["gmail"]
    assert snapshot.level_seconds == 3.75
    assert (snapshot.active, snapshot.reserved_seconds) == (0, 0.0)


def test_a_request_that_cost_more_leaves_a_debt_which_the_trickle_pays() -> None:
    quota = Quotas(BASE)
    admit(quota, "gmail", 0.0, CRITICAL).finish(8.0, 0.0)

    assert quota.snapshot(0.0)["gmail"].level_seconds == -4.0
    assert quota.admit("gmail", CRITICAL_PLUS, 1.0) is None  # −4 + 4 · 1 = 0
    assert quota.admit("gmail", CRITICAL_PLUS, 1.01) is not None


def test_a_cancelled_request_costs_nothing() -> None:
    quota = Quotas(BASE)
    admit(quota, "gmail", 0.0, CRITICAL).cancel(0.0)

    assert quota.snapshot(0.0)["gmail"].level_seconds == 4.0
    assert quota.snapshot(0.0)["gmail"].expected_cost_seconds == 1.0


def test_what_is_given_back_to_a_full_bucket_is_lost() -> None:
    quota = Quotas(BASE)
    reservation = admit(quota, "gmail", 0.0, CRITICAL)
    reservation.cancel(10.0)

    assert quota.snapshot(10.0)["gmail"].level_seconds == 4.0


def test_a_stream_does_not_hold_its_customer_back() -> None:
    quota = Quotas(BASE)
    for _ in range(4):
        admit(quota, "gmail", 0.0, CRITICAL_PLUS)

    assert quota.snapshot(1.0)["gmail"].level_seconds == 4.0  # full again while they are served


def test_a_reservation_is_settled_exactly_once() -> None:
    quota = Quotas(BASE)
    finished, cancelled = (admit(quota, "gmail", 0.0, CRITICAL) for _ in range(2))
    finished.finish(1.0, 0.0)
    cancelled.cancel(0.0)

    for reservation in (finished, cancelled):
        with pytest.raises(UsageError):
            reservation.finish(1.0, 0.0)
        with pytest.raises(UsageError):
            reservation.cancel(0.0)
    assert quota.snapshot(0.0)["gmail"].level_seconds == 3.0


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, 1e300])
def test_a_cost_that_is_no_cost_is_charged_as_expected(cost: float) -> None:
    quota = Quotas(BASE)
    admit(quota, "gmail", 0.0, CRITICAL).finish(cost, 0.0)

    snapshot = quota.snapshot(0.0)["gmail"]
    assert (snapshot.level_seconds, snapshot.expected_cost_seconds) == (3.0, 1.0)


def test_the_expected_cost_is_the_average_of_the_first_and_then_of_recent_costs() -> None:
    quota = Quotas(replace(BASE, cost_smoothing_ratio=0.5, limits={"gmail": 100.0}))
    seen = []
    for cost in (0.5, 0.25, 0.5):
        spend(quota, "gmail", cost, 0.0)
        seen.append(quota.snapshot(0.0)["gmail"].expected_cost_seconds)

    # The guess of 1 does not count; then the mean of two; then half of the newest.
    assert seen == [0.5, 0.375, 0.4375]


# 10 in a full bucket; SHEDDABLE needs more than 5, SHEDDABLE_PLUS 3, CRITICAL 1, CRITICAL_PLUS 0.
@pytest.mark.parametrize(
    ("spent", "admitted"),
    [
        pytest.param(4.9, [True, True, True, True], id="5.1 left"),
        pytest.param(5.0, [False, True, True, True], id="5 left"),
        pytest.param(7.0, [False, False, True, True], id="3 left"),
        pytest.param(9.0, [False, False, False, True], id="1 left"),
        pytest.param(10.0, [False, False, False, False], id="nothing left"),
    ],
)
def test_a_customer_over_quota_loses_its_lowest_criticality_first(
    spent: float, admitted: list[bool]
) -> None:
    for criticality, expected in zip(Criticality, admitted, strict=True):
        quota = Quotas(replace(BASE, limits={"gmail": 10.0}, first_cost_seconds=0.0))
        spend(quota, "gmail", spent, 0.0)
        assert (quota.admit("gmail", criticality, 0.0) is not None) is expected


def test_a_limit_of_a_criticality_holds_it_and_all_lower_ones_together() -> None:
    config = replace(
        BASE,
        limits={"gmail": 100.0},
        criticality_limits={"gmail": {SHEDDABLE_PLUS: 10.0}},
        keep_ratios=(0.0, 0.0, 0.0, 0.0),
    )
    quota = Quotas(config)
    for criticality in (SHEDDABLE, SHEDDABLE_PLUS) * 5:  # ten requests of 1
        admit(quota, "gmail", 0.0, criticality)

    assert quota.admit("gmail", SHEDDABLE, 0.0) is None
    assert quota.admit("gmail", SHEDDABLE_PLUS, 0.0) is None
    assert quota.admit("gmail", CRITICAL, 0.0) is not None
    assert quota.snapshot(0.0)["gmail"].level_seconds == 89.0  # and it counts in the whole
    # With half of its limit here, a customer has half of its further limits.
    quota.update_limits({"gmail": 50.0}, 0.0)
    assert quota.seconds_until("gmail", SHEDDABLE, 0.0) == math.ulp(0.0)
    assert [quota.admit("gmail", SHEDDABLE, 1.0) is not None for _ in range(6)].count(True) == 5


def test_invented_customers_share_one_bucket_and_cost_no_memory() -> None:
    quota = Quotas(BASE)  # 2 for all of them
    admitted = [quota.admit(f"invented {i}", CRITICAL_PLUS, 0.0) for i in range(1000)]

    assert sum(reservation is not None for reservation in admitted) == 2
    assert list(quota.snapshot(0.0)) == ["gmail", DEFAULT_CUSTOMER]
    assert quota.admit("gmail", CRITICAL, 0.0) is not None


def test_a_limit_of_zero_admits_nothing_ever() -> None:
    quota = Quotas(replace(BASE, limits={"gmail": 0.0}))

    assert quota.admit("gmail", CRITICAL_PLUS, 1e9) is None
    assert quota.seconds_until("gmail", CRITICAL_PLUS, 1e9) == math.inf


def test_seconds_until_a_request_could_be_admitted() -> None:
    quota = Quotas(replace(BASE, limits={"gmail": 10.0}))
    assert quota.seconds_until("gmail", CRITICAL, 0.0) == 0.0
    spend(quota, "gmail", 15.0, 0.0)

    # −5 + 10 · t reaches 0, 1 and 5.
    assert quota.seconds_until("gmail", CRITICAL_PLUS, 0.0) == 0.5
    assert quota.seconds_until("gmail", CRITICAL, 0.0) == 0.6
    assert quota.seconds_until("gmail", SHEDDABLE, 0.0) == 1.0
    assert quota.admit("gmail", CRITICAL, 0.601) is not None


def test_demand_counts_refused_requests_at_their_expected_cost() -> None:
    quota = Quotas(replace(BASE, demand_seconds=5.0))
    for tenth in range(100):
        quota.admit("gmail", CRITICAL, tenth / 10)  # 10 a second, 1 each, of which 4 fit

    # The window of 5 s ends within a bucket of 0.1 s: 49 or 50 of the requests.
    assert quota.demand(9.95)["gmail"] == pytest.approx(10.0, rel=0.021)
    assert quota.demand(9.95)[DEFAULT_CUSTOMER] == 0.0
    assert quota.demand(20.0)["gmail"] == 0.0


def test_demand_of_a_backend_that_has_just_started_is_not_too_low() -> None:
    quota = Quotas(replace(BASE, demand_seconds=5.0))
    for tenth in range(10):
        quota.admit("gmail", CRITICAL, 100 + tenth / 10)

    assert quota.demand(101.0)["gmail"] == pytest.approx(10.0)


def test_effective_limits_change_rate_and_capacity_and_mint_nothing() -> None:
    quota = Quotas(BASE)
    quota.update_limits({"gmail": 1.0}, 0.0)
    assert quota.snapshot(0.0)["gmail"].level_seconds == 1.0
    quota.update_limits({"gmail": 3.0}, 0.0)
    assert quota.snapshot(0.0)["gmail"].level_seconds == 1.0
    assert quota.snapshot(0.5)["gmail"].level_seconds == 2.5
    quota.update_limits({"gmail": 99.0}, 0.5)  # more than its limit of 4
    assert quota.snapshot(9.0)["gmail"].level_seconds == 4.0


def test_an_effective_limit_of_zero_is_one_and_a_limit_of_zero_stays() -> None:
    quota = Quotas(replace(BASE, default_limit=0.0))
    quota.update_limits({"gmail": 0.0, DEFAULT_CUSTOMER: 1.0}, 0.0)

    assert quota.admit("gmail", CRITICAL_PLUS, 9.0) is None
    assert quota.admit("stranger", CRITICAL_PLUS, 9.0) is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_customer_without_a_usable_effective_limit_keeps_its_last(wrong: float) -> None:
    quota = Quotas(BASE)
    quota.update_limits({"gmail": 3.0}, 0.0)
    quota.update_limits({"gmail": wrong, "stranger": 1.0}, 0.0)

    assert quota.snapshot(0.0)["gmail"].limit_per_second == 3.0
    assert quota.snapshot(0.0)[DEFAULT_CUSTOMER].limit_per_second == 2.0


def test_memory_aggregator_moves_limits_to_where_the_demand_is() -> None:
    config = QuotaConfig(limits={"gmail": 8.0}, default_limit=2.0)
    aggregator: QuotaAggregator = MemoryAggregator(config, capacity=100.0)
    assert aggregator.limits_of("x", 0.0) == {}
    aggregator.report("x", {"gmail": 12.0}, 0.0)
    assert aggregator.limits_of("x", 0.0) == {"gmail": 8.0, DEFAULT_CUSTOMER: 2.0}
    aggregator.report("y", {"gmail": 3.0}, 5.0)

    # Of 8, a twentieth evenly (0.2 each) and 7.6 over demands of 12 and 3; the default customer's
    # headroom evenly.
    x, y = aggregator.limits_of("x", 5.0), aggregator.limits_of("y", 5.0)
    assert x == pytest.approx({"gmail": 4.6 + 0.2, DEFAULT_CUSTOMER: 1.0})
    assert y == pytest.approx({"gmail": 3.0 + 0.2, DEFAULT_CUSTOMER: 1.0})
    # x has not reported for more than 10 s: its part goes to y.
    assert aggregator.limits_of("y", 10.1) == {"gmail": 8.0, DEFAULT_CUSTOMER: 2.0}
    assert aggregator.limits_of("x", 10.1) == {}


def test_memory_aggregator_and_quotas_together_hold_a_customer_to_its_limit() -> None:
    config = QuotaConfig(limits={"gmail": 4.0}, default_limit=1.0, first_cost_seconds=0.01)
    aggregator = MemoryAggregator(config)
    backends = {name: Quotas(config) for name in ("x", "y")}
    used = 0.0
    for millisecond in range(20_000):
        now = millisecond / 1000
        if millisecond % 1000 == 0:
            for name, quota in backends.items():
                aggregator.report(name, quota.demand(now), now)
            for name, quota in backends.items():
                quota.update_limits(aggregator.limits_of(name, now), now)
        # Each is asked for 10 CPUs: 1,000 requests a second of 10 ms.
        for quota in backends.values():
            reservation = quota.admit("gmail", CRITICAL, now)
            if reservation is not None:
                reservation.finish(0.01, now)
                used += 0.01

    # 20 s · 4 CPUs, and at most the two buckets as they were at first: 2 + 2 after the first cut.
    assert 80.0 - 4.0 <= used <= 80.0 + 4.0


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"": 1.0}},
        {"limits": {"gmail": math.nan}},
        {"limits": {"gmail": -1.0}},
        {"default_limit": math.inf},
        {"criticality_limits": {"android": {CRITICAL: 1.0}}},
        {"criticality_limits": {"gmail": {CRITICAL: 5.0}}},
        {"criticality_limits": {"gmail": {7: 1.0}}},
        {"criticality_limits": {"gmail": {CRITICAL: math.nan}}},
        {"burst_seconds": 0.0},
        {"keep_ratios": (0.1, 0.3, 0.1, 0.0)},
        {"keep_ratios": (0.5, 0.3)},
        {"keep_ratios": (1.0, 0.3, 0.1, 0.0)},
        {"keep_ratios": (math.nan, 0.3, 0.1, 0.0)},
        {"first_cost_seconds": -1.0},
        {"cost_smoothing_ratio": 0.0},
        {"demand_seconds": math.nan},
    ],
)
def test_wrong_config(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(BASE, **fields)


@pytest.mark.parametrize("fields", [{"capacity": 0.0}, {"expiry_seconds": math.nan}])
def test_wrong_aggregator(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MemoryAggregator(QuotaConfig(limits={}, default_limit=1.0), **fields)
