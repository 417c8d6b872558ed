"""What every throttle must show, and the layer of customers that they share."""

from __future__ import annotations

import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.throttle import NoThrottle, Throttle
from evenly.core.overload.throttle_catalogue import THROTTLES, ThrottleConfig, make_throttle
from evenly.core.request import Outcome
from evenly.errors import ConfigError

CRITICAL = Criticality.CRITICAL
NOTHING = (0.0, 0.0, 0.0, 0.0)
THROTTLING = ("responsive", "adaptive")
REJECTIONS = (Outcome.OVERLOADED, Outcome.DONT_RETRY, Outcome.TIMEOUT)
ACCEPTS = (Outcome.OK, Outcome.ERROR, Outcome.OUT_OF_QUOTA)
SILENT = (Outcome.CANCELLED, Outcome.NOT_SENT, Outcome.LOST)


def throttle_named(name: str, seed: int = 1) -> Throttle:
    return make_throttle(ThrottleConfig(name=name), rng=random.Random(seed), now=0.0)


def record_many(
    throttle: Throttle,
    outcome: Outcome,
    *,
    start: float = 0.0,
    count: int = 30,
    customer: str = "",
    criticality: Criticality = CRITICAL,
) -> float:
    now = start
    for _ in range(count):
        now += 0.1
        throttle.record(criticality, customer, outcome, now)
    return now


def rejected_ratio(throttle: Throttle, customer: str, now: float) -> float:
    # All at one instant, so that nothing goes out merely because nothing has for long.
    return sum(not throttle.admit(CRITICAL, customer, now) for _ in range(200)) / 200


def test_throttles_by_name() -> None:
    assert THROTTLES == ("responsive", "adaptive", "off")
    assert ThrottleConfig().name == "responsive"
    assert [type(throttle_named(name)).__name__ for name in THROTTLES] == [
        "ResponsiveThrottle",
        "AdaptiveThrottle",
        "NoThrottle",
    ]
    with pytest.raises(ConfigError, match="one of responsive, adaptive, off, not 'on'"):
        ThrottleConfig(name="on")


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.name)
def test_no_throttle_lets_everything_through(outcome: Outcome) -> None:
    throttle = throttle_named("off")
    now = record_many(throttle, outcome, customer="a")

    assert throttle.admit(CRITICAL, "a", now)
    assert not throttle.should_ask(CRITICAL, now + 60.0)
    assert throttle.admit_asked(CRITICAL, "a", 4.0, now)
    assert throttle.is_normal(now)
    assert throttle.snapshot(now).rejection_probabilities == NOTHING


@pytest.mark.parametrize("name", THROTTLES)
def test_a_new_throttle_is_normal_and_rejects_nothing(name: str) -> None:
    throttle = throttle_named(name)

    assert throttle.is_normal(0.0)
    assert not throttle.should_ask(CRITICAL, 100.0)
    assert all(throttle.admit(criticality, "", 0.0) for criticality in Criticality)
    assert throttle.line(0.0) == throttle.snapshot(0.0).line == 0.0


@pytest.mark.parametrize("name", THROTTLING)
@pytest.mark.parametrize("outcome", REJECTIONS, ids=lambda outcome: outcome.name)
def test_rejections_and_timeouts_throttle_their_criticality_alone(
    name: str, outcome: Outcome
) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, outcome, criticality=Criticality.SHEDDABLE)

    sheddable, *others = throttle.snapshot(now).rejection_probabilities
    assert sheddable > 0.9
    assert others == [0.0, 0.0, 0.0]
    assert not throttle.is_normal(now)


@pytest.mark.parametrize(
    ("name", "is_lower_throttled"),
    [
        pytest.param("responsive", True, id="ours: a lower one no less"),
        pytest.param("adaptive", False, id="the book's: each for itself"),
    ],
)
def test_what_is_throttled_beside_the_criticality_that_was_rejected(
    name: str, is_lower_throttled: bool
) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.TIMEOUT)

    *lower, critical, critical_plus = throttle.snapshot(now).rejection_probabilities
    assert critical > 0.9
    assert lower == [critical if is_lower_throttled else 0.0] * 2
    assert critical_plus == 0.0


@pytest.mark.parametrize("name", THROTTLING)
@pytest.mark.parametrize("outcome", ACCEPTS, ids=lambda outcome: outcome.name)
def test_any_other_answer_is_an_accept(name: str, outcome: Outcome) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.OVERLOADED, count=3)
    before = throttle.snapshot(now).rejection_probabilities[CRITICAL]
    now = record_many(throttle, outcome, start=now, count=60)

    assert before > 0.1
    assert throttle.snapshot(now).rejection_probabilities == NOTHING


@pytest.mark.parametrize("name", THROTTLING)
@pytest.mark.parametrize("outcome", SILENT, ids=lambda outcome: outcome.name)
@pytest.mark.parametrize("count", [0, 3])
def test_cancelled_lost_and_unsent_requests_say_nothing(
    name: str, outcome: Outcome, count: int
) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.OVERLOADED, count=count)
    before = throttle.snapshot(now)
    now = record_many(throttle, outcome, start=now)

    assert throttle.snapshot(now) == before


@pytest.mark.parametrize("name", THROTTLES)
@pytest.mark.parametrize("cut", [None, 0.0, 2.0], ids=["nobody answered", "calm", "at the line"])
def test_what_is_admitted_already_is_not_decided_again(name: str, cut: float | None) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.OVERLOADED)
    now = record_many(throttle, Outcome.OUT_OF_QUOTA, customer="greedy", start=now)
    before = throttle.snapshot(now)

    assert all(
        throttle.admit_asked(CRITICAL, "greedy", cut, now, is_admitted=True) for _ in range(200)
    )
    assert throttle.snapshot(now) == before


@pytest.mark.parametrize("name", THROTTLING)
def test_quota_rejections_throttle_that_customer_only(name: str) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.OUT_OF_QUOTA, customer="greedy")

    # At most a fifth is sent; of 1,000 draws that is 0.8 ± 0.013, five of them.
    assert rejected_ratio(throttle, "greedy", now) > 0.735
    assert rejected_ratio(throttle, "modest", now) == 0.0
    snapshot = throttle.snapshot(now)
    assert snapshot.rejection_probabilities == NOTHING  # for the criticality they were accepts
    assert snapshot.throttled_customers == ("greedy",)
    assert not throttle.is_normal(now)


@pytest.mark.parametrize("name", THROTTLING)
def test_quota_rejections_throttle_that_criticality_of_the_customer_only(name: str) -> None:
    throttle = throttle_named(name)
    now = record_many(
        throttle, Outcome.OUT_OF_QUOTA, customer="greedy", criticality=Criticality.SHEDDABLE
    )

    assert rejected_ratio(throttle, "greedy", now) == 0.0  # of CRITICAL


# One rejection and nothing else: 1 − exp(−7/8 · 0.25 / 2) = 0.10 ± 0.02 of 200 draws, where four
# would be 0.30; or (1 − 0) / (1 + 1) and rising.
@pytest.mark.parametrize(("name", "most"), [("responsive", 0.2), ("adaptive", 1.0)])
def test_a_customer_throttle_hears_only_of_quota(name: str, most: float) -> None:
    throttle = throttle_named(name)
    throttle.record(CRITICAL, "greedy", Outcome.OUT_OF_QUOTA, 0.1)
    before = rejected_ratio(throttle_named(name), "greedy", 0.1)
    for outcome in (*REJECTIONS, *SILENT):
        throttle.record(CRITICAL, "greedy", outcome, 0.1)
    # Enough accepts of others to make the criticality normal again.
    now = record_many(throttle, Outcome.OK, customer="modest", start=0.1, count=100)

    assert before == 0.0
    assert throttle.snapshot(now).rejection_probabilities == NOTHING
    assert throttle.snapshot(now).throttled_customers == ("greedy",)
    assert 0.0 < rejected_ratio(throttle, "greedy", now) < most


@pytest.mark.parametrize("name", THROTTLING)
def test_a_customer_with_quota_again_loses_its_throttle(name: str) -> None:
    throttle = throttle_named(name)
    now = record_many(throttle, Outcome.OUT_OF_QUOTA, customer="greedy", count=5)
    assert throttle.snapshot(now).throttled_customers == ("greedy",)
    # 121 s: longer than the book's window, so that no rejection is left in it.
    now = record_many(throttle, Outcome.OK, customer="greedy", start=now, count=1210)

    assert throttle.snapshot(now).throttled_customers == ()
    assert throttle.is_normal(now)


@pytest.mark.parametrize("name", THROTTLING)
def test_the_customer_not_seen_for_longest_is_forgotten_first(name: str) -> None:
    throttle = throttle_named(name)
    for number in range(1000):
        throttle.record(CRITICAL, f"c{number}", Outcome.OUT_OF_QUOTA, 0.0)
    throttle.admit(CRITICAL, "c0", 0.0)  # seen: c1 is now the oldest
    throttle.record(CRITICAL, "c1000", Outcome.OUT_OF_QUOTA, 0.0)
    throttle.record(CRITICAL, "c2", Outcome.OUT_OF_QUOTA, 0.0)  # seen: c3 is now the oldest
    throttle.record(CRITICAL, "c1001", Outcome.OUT_OF_QUOTA, 0.0)

    customers = throttle.snapshot(0.0).throttled_customers
    assert len(customers) == 1000
    assert {"c0", "c2", "c1000", "c1001"} <= set(customers)
    assert not {"c1", "c3"} & set(customers)


def test_no_throttle_has_no_state() -> None:
    assert NoThrottle.__slots__ == ()
