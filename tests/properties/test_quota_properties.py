from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.core.overload.quota import CustomerSnapshot, QuotaConfig, Quotas, Reservation

# Some hundred sums of amounts below 1e4, each off by at most 1e4 · 1.1e-16.
NEAR = 1e-9

CONFIG = QuotaConfig(
    limits={"a": 4.0, "b": 0.5},
    default_limit=1.0,
    criticality_limits={"a": {Criticality.SHEDDABLE: 1.0, Criticality.CRITICAL: 3.0}},
    first_cost_seconds=0.1,
)
customers = st.sampled_from(["a", "b", "", "invented", "another"])
steps = st.lists(
    st.tuples(
        st.floats(-2.0, 5.0),  # back in time as well
        st.sampled_from(["admit", "admit", "admit", "finish", "atypical", "cancel", "limits"]),
        customers,
        st.sampled_from(Criticality),
        st.one_of(st.floats(0.0, 3.0), st.floats()),
    ),
    max_size=80,
)


class Model:
    """What an account may ever have given out, from first principles."""

    def __init__(self, level: float) -> None:
        self.earned = level
        self.rate = level  # burst_seconds is 1
        self.held: list[Reservation] = []
        self.settled = 0.0
        self.excess = 0.0
        self.largest_reservation = 0.0

    def admitted(self, reservation: Reservation) -> None:
        self.held.append(reservation)
        self.largest_reservation = max(self.largest_reservation, reservation.amount)

    def settle(self, which: int, verb: str, cost: float, now: float) -> None:
        reservation = self.held.pop(which % len(self.held))
        if verb == "cancel":
            reservation.cancel(now)
            return
        reservation.finish(cost, now, is_typical=verb == "finish")
        charged = cost if 0.0 <= cost <= 1e6 else reservation.amount
        self.settled += charged
        self.excess += max(0.0, charged - reservation.amount)

    def check(self, shown: CustomerSnapshot) -> None:
        reserved = math.fsum(reservation.amount for reservation in self.held)
        allowance = self.earned + self.largest_reservation + self.excess
        assert self.settled + reserved <= allowance + NEAR
        assert shown.active == len(self.held)
        assert shown.reserved_seconds == pytest.approx(reserved, abs=NEAR)
        assert shown.level_seconds <= shown.limit_per_second
        assert shown.demand_per_second >= 0.0
        assert shown.expected_cost_seconds >= CONFIG.first_cost_seconds / 10


@given(steps=steps)
def test_nothing_overdraws_a_bucket_by_more_than_one_request_or_leaks_a_reservation(
    steps: list[tuple[float, str, str, Criticality, float]],
) -> None:
    quota = Quotas(CONFIG)
    models = {"a": Model(4.0), "b": Model(0.5), "": Model(1.0)}
    now = latest = 0.0
    quota.snapshot(now)  # time begins
    for step, verb, customer, criticality, number in steps:
        now += step
        for model in models.values():
            model.earned += max(0.0, now - latest) * model.rate
        latest = max(latest, now)
        model = models.get(customer, models[""])
        if verb == "admit":
            reservation = quota.admit(customer, criticality, now)
            if reservation is not None:
                model.admitted(reservation)
        elif verb == "limits":
            quota.update_limits({customer: number}, now)
        elif model.held:
            model.settle(criticality, verb, number, now)
        for name, shown in quota.snapshot(now).items():
            models[name].check(shown)
            models[name].rate = shown.limit_per_second
    for reservation in [each for model in models.values() for each in model.held]:
        reservation.cancel(now)
    for shown in quota.snapshot(now).values():
        assert (shown.active, shown.reserved_seconds) == (0, 0.0)


@given(
    spent=st.lists(
        st.tuples(st.floats(0.0, 1.0), st.sampled_from(Criticality), st.floats(0.0, 2.0)),
        max_size=20,
    )
)
def test_a_criticality_is_refused_only_where_all_lower_ones_of_the_customer_are(
    spent: list[tuple[float, Criticality, float]],
) -> None:
    quota = Quotas(CONFIG)
    now = 0.0
    for step, criticality, cost in spent:
        now += step
        reservation = quota.admit("a", criticality, now)
        if reservation is not None:
            reservation.finish(cost, now)
        admitted = []
        for asked in Criticality:
            trial = quota.admit("a", asked, now)
            admitted.append(trial is not None)
            # Nothing to wait for if it was admitted, and something otherwise.
            if trial is not None:
                trial.cancel(now)
                assert quota.seconds_until("a", asked, now) == 0.0
            else:
                assert quota.seconds_until("a", asked, now) > 0.0
        assert all(higher or not lower for lower, higher in pairwise(admitted))


@given(count=st.integers(1, 200), cost=st.floats(0.001, 1.0), seconds=st.floats(0.0, 20.0))
def test_requests_served_at_once_overdraw_by_less_than_one_when_they_cost_what_was_expected(
    count: int, cost: float, seconds: float
) -> None:
    quota = Quotas(QuotaConfig(limits={"a": 4.0}, default_limit=0.0, first_cost_seconds=cost))
    held = [quota.admit("a", Criticality.CRITICAL_PLUS, 0.0) for _ in range(count)]
    for reservation in held:
        if reservation is not None:
            reservation.finish(cost, seconds)

    assert quota.snapshot(seconds)["a"].level_seconds > -cost - NEAR


@given(costs=st.lists(st.tuples(st.floats(0.0, 1e6), st.booleans()), max_size=50))
def test_what_is_not_typical_changes_no_expectation(costs: list[tuple[float, bool]]) -> None:
    expected = []
    for told in (costs, [each for each in costs if each[1]]):
        quota = Quotas(QuotaConfig(limits={"a": 1e9}, default_limit=0.0))
        for cost, is_typical in told:
            reservation = quota.admit("a", Criticality.CRITICAL_PLUS, 0.0)
            assert reservation is not None
            reservation.finish(cost, 0.0, is_typical=is_typical)
        expected.append(quota.snapshot(0.0)["a"].expected_cost_seconds)

    assert expected[0] == expected[1]
