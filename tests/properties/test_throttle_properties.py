from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.core.overload.responsive_throttle import (
    ResponsiveThrottle,
    ResponsiveThrottleConfig,
)
from evenly.core.overload.throttle import Throttle
from evenly.core.overload.throttle_catalogue import THROTTLES, ThrottleConfig, make_throttle
from evenly.core.request import Outcome

criticalities = st.sampled_from(list(Criticality))
customers = st.sampled_from(["", "a", "b"])
seconds = st.one_of(st.just(0.0), st.floats(-1.0, 3.0), st.floats(100.0, 1e6))
steps = st.lists(
    st.tuples(
        seconds,
        criticalities,
        customers,
        st.one_of(st.sampled_from(list(Outcome)), st.integers(0, 15), st.none()),
    ),
    max_size=80,
)
Step = tuple[float, Criticality, str, Outcome | int | None]


def make(name: str) -> Throttle:
    return make_throttle(ThrottleConfig(name=name), rng=random.Random(1), now=0.0)


def take(throttle: Throttle, step: Step, now: float) -> None:
    """Record an outcome, or a report (an int), or only decide."""
    _, criticality, customer, what = step
    if isinstance(what, Outcome):
        throttle.record(criticality, customer, what, now)
        return
    assert throttle.is_troubled or not throttle.should_ask(criticality, now)
    if throttle.should_ask(criticality, now):
        throttle.admit_asked(criticality, customer, what, now)
    else:
        throttle.admit(criticality, customer, now)
    if what is not None:
        throttle.record_report(what, now)


@given(steps=steps)
@pytest.mark.parametrize("name", THROTTLES)
def test_no_sequence_makes_rejection_certain(name: str, steps: list[Step]) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        take(throttle, step, now)

        snapshot = throttle.snapshot(now)
        assert all(0.0 <= p < 1.0 for p in snapshot.rejection_probabilities)
        assert set(snapshot.throttled_customers) <= {"", "a", "b"}


@given(reports=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 15)), max_size=40))
def test_a_report_stops_the_asking_only_by_admitting(reports: list[tuple[float, int]]) -> None:
    throttle = make("responsive")
    throttle.record_report(15, 0.0)
    throttle.record(Criticality.CRITICAL, "", Outcome.OVERLOADED, 0.0)
    now = 0.0
    for step, admits in reports:
        now += step
        throttle.record_report(admits, now)

        is_refused = not admits >> Criticality.CRITICAL & 1
        assert throttle.should_ask(Criticality.CRITICAL, now) is (is_refused and now > 2.0)


@given(steps=steps, spared=criticalities)
@pytest.mark.parametrize("name", THROTTLES)
def test_what_happens_to_lower_criticalities_changes_nothing(
    name: str, steps: list[Step], spared: Criticality
) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        if step[1] < spared:
            take(throttle, step, now)

    assert throttle.snapshot(now).rejection_probabilities[spared] == 0.0


@given(steps=steps)
def test_where_backends_report_no_criticality_is_throttled_more_than_a_lower_one(
    steps: list[Step],
) -> None:
    # Of 80 steps of 1,000 s at most, none is without a report for a day.
    config = ResponsiveThrottleConfig(forget_seconds=86_400.0)
    throttle = ResponsiveThrottle(config, rng=random.Random(1), now=0.0)
    throttle.record_report(15, 0.0)
    now = 0.0
    for step in steps:
        now += min(step[0], 1000.0)
        take(throttle, step, now)

        shown = throttle.snapshot(now).rejection_probabilities
        assert list(shown) == sorted(shown, reverse=True)


@given(steps=steps, spared=criticalities)
def test_the_books_throttle_hears_of_one_criticality_alone(
    steps: list[Step], spared: Criticality
) -> None:
    throttle = make("adaptive")
    now = 0.0
    for step in steps:
        now += step[0]
        if step[1] is not spared:
            take(throttle, step, now)

    assert throttle.snapshot(now).rejection_probabilities[spared] == 0.0


@given(steps=steps)
@pytest.mark.parametrize("name", THROTTLES)
def test_quota_never_shows_in_a_criticality(name: str, steps: list[Step]) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        throttle.record(step[1], step[2], Outcome.OUT_OF_QUOTA, now)
        throttle.admit(step[1], step[2], now)

    assert throttle.snapshot(now).rejection_probabilities == (0.0, 0.0, 0.0, 0.0)
    assert throttle.admit(Criticality.CRITICAL, "someone else", now)


@given(outcomes=st.lists(st.sampled_from([Outcome.OK, Outcome.OVERLOADED]), max_size=100))
def test_equation_against_a_list(outcomes: list[Outcome]) -> None:
    throttle = make("adaptive")
    accepts = 0
    for requests, outcome in enumerate(outcomes, start=1):
        if throttle.admit(Criticality.CRITICAL, "", 0.0):
            throttle.record(Criticality.CRITICAL, "", outcome, 0.0)
            accepts += outcome is Outcome.OK
        expected = max(0.0, (requests - 2 * accepts) / (requests + 1))
        probabilities = throttle.snapshot(0.0).rejection_probabilities
        assert probabilities[Criticality.CRITICAL] == pytest.approx(expected)
