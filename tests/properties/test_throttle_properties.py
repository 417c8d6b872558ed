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
# Exactly 0 and 4, whole criticalities, and what is in between.
cuts = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]), st.floats(0.0, 4.0))
lucks = st.integers(0, 63).map(lambda step: step / 64)
steps = st.lists(
    st.tuples(
        seconds,
        st.tuples(criticalities, lucks),
        customers,
        st.one_of(st.sampled_from(list(Outcome)), cuts, st.none()),
    ),
    max_size=80,
)
Step = tuple[float, tuple[Criticality, float], str, Outcome | float | None]


def make(name: str) -> Throttle:
    return make_throttle(ThrottleConfig(name=name), rng=random.Random(1), now=0.0)


def take(throttle: Throttle, step: Step, now: float) -> None:
    """Record an outcome, or a report (a number), or only decide."""
    _, (criticality, luck), customer, what = step
    level = criticality + luck
    if isinstance(what, Outcome):
        throttle.record(criticality, customer, what, now)
        return
    assert throttle.is_troubled or not throttle.should_ask(level, now)
    if throttle.should_ask(level, now):
        throttle.admit_asked(level, customer, what, now)
    else:
        throttle.admit(level, customer, now)
    if what is not None:
        throttle.record_report(what, now)


@given(steps=steps)
@pytest.mark.parametrize("name", THROTTLES)
def test_only_a_line_makes_rejection_certain(name: str, steps: list[Step]) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        take(throttle, step, now)

        snapshot = throttle.snapshot(now)
        assert 0.0 <= snapshot.line <= 4.0
        assert snapshot.line == throttle.line(now)
        for criticality, probability in zip(
            Criticality, snapshot.rejection_probabilities, strict=True
        ):
            assert 0.0 <= probability <= 1.0
            assert probability < 1.0 or snapshot.line >= criticality + 1
        assert set(snapshot.throttled_customers) <= {"", "a", "b"}


# Neither customers nor timeouts: then who is refused here is below the line, and nobody else is.
@given(
    steps=st.lists(
        st.tuples(
            seconds,
            criticalities,
            lucks,
            st.one_of(st.sampled_from([Outcome.OK, Outcome.ERROR, Outcome.OVERLOADED]), cuts),
        ),
        max_size=80,
    )
)
def test_where_backends_report_who_is_throttled_is_below_the_line(
    steps: list[tuple[float, Criticality, float, Outcome | float]],
) -> None:
    # Of 80 steps of 1,000 s at most, none is without a report for a day.
    config = ResponsiveThrottleConfig(forget_seconds=86_400.0)
    throttle = ResponsiveThrottle(config, rng=random.Random(1), now=0.0)
    throttle.record_report(0.0, 0.0)
    now = 0.0
    for step, criticality, luck, what in steps:
        now += min(step, 1000.0)
        level = criticality + luck
        if isinstance(what, Outcome):
            throttle.record(criticality, "", what, now)
        else:
            throttle.record_report(what, now)
        line = throttle.line(now)
        assert throttle.admit(level, "", now) is (level >= line)
        assert throttle.admit_asked(level, "", line, now) is (level >= line)
        assert throttle.is_troubled or line == 0.0


@given(steps=steps, pause=st.floats(60.0, 1e6), level=st.floats(0.0, 3.99))
@pytest.mark.parametrize("customer", ["", "a"])
def test_time_heals_everything(
    customer: str, steps: list[Step], pause: float, level: float
) -> None:
    throttle = make("responsive")
    now = latest = 0.0
    for step in steps:
        now += step[0]
        latest = max(latest, now)
        take(throttle, step, now)
    now = latest + pause

    # A clock that stepped back has left what was heard later; from then on it is forgotten.
    assert throttle.admit(level, customer, now)
    assert throttle.is_normal(now)
    assert throttle.line(now) == 0.0
    assert throttle.snapshot(now).rejection_probabilities == (0.0, 0.0, 0.0, 0.0)


@given(reports=st.lists(st.tuples(st.floats(0.0, 3.0), cuts), max_size=40), luck=lucks)
def test_whoever_would_be_refused_by_the_last_report_asks(
    reports: list[tuple[float, float]], luck: float
) -> None:
    throttle = make("responsive")
    throttle.record_report(0.0, 0.0)
    level = Criticality.CRITICAL + luck
    now = 0.0
    for step, cut in reports:
        now += step
        throttle.record_report(cut, now)

        if level < cut:
            assert throttle.should_ask(level, now) is (now > 2.0)
        elif level >= throttle.line(now):
            assert not throttle.should_ask(level, now)


@given(steps=steps, spared=criticalities)
@pytest.mark.parametrize("name", THROTTLES)
def test_what_happens_to_lower_criticalities_changes_nothing(
    name: str, steps: list[Step], spared: Criticality
) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        is_of_lower = not isinstance(step[3], float) or step[3] <= spared
        if step[1][0] < spared and is_of_lower:
            take(throttle, step, now)

    assert throttle.snapshot(now).rejection_probabilities[spared] == 0.0


@given(steps=steps)
def test_where_backends_report_no_criticality_is_throttled_more_than_a_lower_one(
    steps: list[Step],
) -> None:
    # Of 80 steps of 1,000 s at most, none is without a report for a day.
    config = ResponsiveThrottleConfig(forget_seconds=86_400.0)
    throttle = ResponsiveThrottle(config, rng=random.Random(1), now=0.0)
    throttle.record_report(0.0, 0.0)
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
        if step[1][0] is not spared:
            take(throttle, step, now)

    assert throttle.snapshot(now).rejection_probabilities[spared] == 0.0


@given(steps=steps)
@pytest.mark.parametrize("name", THROTTLES)
def test_quota_never_shows_in_a_criticality(name: str, steps: list[Step]) -> None:
    throttle = make(name)
    now = 0.0
    for step in steps:
        now += step[0]
        throttle.record(step[1][0], step[2], Outcome.OUT_OF_QUOTA, now)
        throttle.admit(sum(step[1]), step[2], now)

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
