from __future__ import annotations

import math
import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottle, AdaptiveThrottleConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.overload.send_probability import SendProbabilityConfig
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Cause, Outcome
from evenly.errors import ConfigError
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import CuttingBackend, IdealBackend, offer

CRITICAL = Criticality.CRITICAL
CAPACITY = 50.0
NOTHING = 0.0
"""The cut of a backend that refuses nothing ..."""
NO_CRITICAL = 3.0
"""... and of one that refuses all but CRITICAL_PLUS."""


def make() -> ResponsiveThrottle:
    """Return a throttle of a service whose backends report, and refuse nothing so far."""
    throttle = ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(21), now=0.0)
    throttle.record_report(NOTHING, 0.0)
    return throttle


def cut_at(now: float, cut: float = NO_CRITICAL) -> ResponsiveThrottle:
    """Return one that has heard of this cut-line, after long."""
    throttle = make()
    throttle.record_report(cut, now)
    return throttle


# The line


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        pytest.param(0.5, [0.5, 1.5, 2.5, 3.5], id="0.47: half of them is above"),
        pytest.param(0.6, [1.5, 2.5, 3.5], id="0.57: SHEDDABLE is not"),
        pytest.param(2.52, [2.5, 3.5], id="2.49, for the margin is 0.03"),
        pytest.param(2.54, [3.5], id="2.51"),
        pytest.param(4.0, [], id="3.97: nobody"),
    ],
)
def test_what_is_below_the_line_is_not_sent(cut: float, expected: list[float]) -> None:
    throttle = cut_at(5.0, cut)

    assert [level for level in (0.5, 1.5, 2.5, 3.5) if throttle.admit(level, "", 5.0)] == expected
    assert throttle.line(5.0) == throttle.snapshot(5.0).line == pytest.approx(cut - 0.03)
    assert throttle.is_troubled
    assert not throttle.is_normal(5.0)


def test_a_request_that_is_held_back_says_why() -> None:
    throttle = cut_at(5.0)
    throttle.cause = Cause.QUOTA

    assert not throttle.admit(2.5, "", 5.0)
    assert throttle.cause is Cause.REJECTIONS


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        pytest.param(0.53, (0.5, 0.0, 0.0, 0.0), id="half of SHEDDABLE"),
        pytest.param(2.28, (1.0, 1.0, 0.25, 0.0), id="a quarter of CRITICAL, and all below"),
    ],
)
def test_the_snapshot_says_how_likely_each_is_held_back(
    cut: float, expected: tuple[float, ...]
) -> None:
    assert cut_at(5.0, cut).snapshot(5.0).rejection_probabilities == pytest.approx(expected)


# Without a word nobody knows: then all go out, and the first answers tell.
@pytest.mark.parametrize(("now", "is_sent"), [(7.0, False), (7.001, True)])
def test_a_line_is_believed_for_two_seconds_after_the_last_report(
    now: float, is_sent: bool
) -> None:
    throttle = cut_at(5.0)

    assert throttle.admit(2.5, "", now) is is_sent
    assert (throttle.line(now) == 0.0) is is_sent


def test_where_backends_report_their_refusals_say_nothing_more() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)

    assert throttle.is_normal(10.0)
    assert not throttle.is_troubled


def test_peace_returns_with_the_reports() -> None:
    throttle = cut_at(5.0)
    for tick in range(1, 54):
        throttle.record_report(NOTHING, 5.0 + tick * 0.01)
        assert throttle.is_troubled is (tick < 53)  # 3 · exp(−5.3) = 0.015 is below 1/64.

    assert throttle.is_normal(5.53)
    assert throttle.admit(0.0, "", 5.53)


def recover(
    throttle: Throttle, backend: IdealBackend | CuttingBackend, *, times: float, seconds: int
) -> list[float]:
    """Return the ratio that passes in each second at 0.7 ×, after a minute at `times` ×."""
    rng = random.Random(21)
    clock = backend.clock if isinstance(backend, CuttingBackend) else ManualClock(0.0)
    offer(throttle, backend, clock=clock, rng=rng, per_second=times * CAPACITY, seconds=60.0)
    return [
        offer(
            throttle, backend, clock=clock, rng=rng, per_second=0.7 * CAPACITY, seconds=1.0
        ).sent_ratio
        for _ in range(seconds)
    ]


@pytest.mark.parametrize("times", [2.0, 10.0, 100.0])
def test_recovers_within_five_seconds(times: float) -> None:
    backend = CuttingBackend(CAPACITY, clock=ManualClock(0.0))
    passed = recover(make(), backend, times=times, seconds=30)

    # By chance its queue is too long now and then.
    assert min(passed[5:]) >= 0.95


def test_the_books_throttle_takes_minutes() -> None:
    books = AdaptiveThrottle(AdaptiveThrottleConfig(), rng=random.Random(21))
    passed = recover(books, IdealBackend(CAPACITY), times=10.0, seconds=120)

    assert max(passed[60:90]) < 0.95


# 60 s at C = 50 are 3000: ± 1.8 %.
@pytest.mark.parametrize("answer_seconds", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("times", [2, 10, 100])
def test_keeps_goodput_however_late_the_answers(answer_seconds: float, times: int) -> None:
    throttle = make()
    rng = random.Random(21)
    clock = ManualClock(0.0)
    backend = CuttingBackend(CAPACITY, clock=clock)
    tallies = [
        offer(
            throttle,
            backend,
            clock=clock,
            rng=rng,
            per_second=times * CAPACITY,
            seconds=seconds,
            answer_seconds=answer_seconds,
        )
        for seconds in (10.0, 60.0)
    ]

    assert tallies[1].accepted / 60 >= 0.93 * CAPACITY
    # Of what is offered the margin lets 0.03 pass that is refused, and chance a tenth.
    assert tallies[1].sent / 60 <= (1.1 + 0.03 * times) * CAPACITY


# Once a minute, and it was refused: what is sent a hundred times a second was held at 0.18 for six
# minutes, though all of it was accepted.
def test_one_bad_end_of_a_rare_criticality_does_not_hold_the_others_back() -> None:
    throttle = make()
    throttle.record_report(NOTHING, 59.0)
    throttle.record(Criticality.CRITICAL_PLUS, "", Outcome.OVERLOADED, 60.0)
    rng = random.Random(21)
    now = 60.0
    passed: list[bool] = []
    while now < 70.0:
        now += rng.expovariate(100.0)
        is_sent = throttle.admit(CRITICAL, "", now)
        if is_sent:
            throttle.record(CRITICAL, "", Outcome.OK, now)
        if now >= 65.0:
            passed.append(is_sent)

    assert all(passed)


def test_a_customer_out_of_quota_has_settings_of_its_own() -> None:
    half = SendProbabilityConfig(min_probability=0.5)
    throttle = ResponsiveThrottle(
        ResponsiveThrottleConfig(customer_send_probability=half), rng=random.Random(21), now=0.0
    )
    for tick in range(1, 101):
        throttle.record(CRITICAL, "greedy", Outcome.OUT_OF_QUOTA, tick * 0.1)
    throttle.admit(CRITICAL, "greedy", 10.0)  # goes out anyway

    # Half of 1,000: 500 ± 16, five of them.
    sent_of_it = sum(throttle.admit(CRITICAL, "greedy", 10.0) for _ in range(1000))
    assert sent_of_it == pytest.approx(500, abs=80)
    assert ResponsiveThrottleConfig().customer_send_probability == SendProbabilityConfig(
        accepts_multiplier=2.0, min_probability=0.2
    )


# Asking first


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(7.0, False, id="an answer of its own is 2 s old"),
        pytest.param(7.001, True, id="older"),
    ],
)
def test_asks_where_what_is_known_is_a_no_and_no_answer_is_recent(
    now: float, expected: bool
) -> None:
    throttle = cut_at(5.0)
    throttle.record(CRITICAL, "", Outcome.OVERLOADED, 5.0)

    assert throttle.should_ask(2.5, now) is expected
    assert not throttle.should_ask(3.0, now)  # Whom nobody refuses need not ask.


def test_by_the_last_report_it_asks_too_while_the_line_has_yet_to_rise() -> None:
    throttle = make()
    for tick in range(100):  # Most refuse nothing, and the last one CRITICAL.
        throttle.record_report(NO_CRITICAL if tick == 99 else NOTHING, 60.0 + tick * 0.001)

    assert throttle.line(60.1) < 0.1
    assert throttle.should_ask(2.5, 60.1)


def test_does_not_ask_after_better_news() -> None:
    throttle = cut_at(5.0)
    throttle.record_report(NOTHING, 7.5)

    assert not throttle.should_ask(0.0, 60.0)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR, Outcome.OVERLOADED])
def test_an_answer_of_its_own_is_believed_for_two_seconds(outcome: Outcome) -> None:
    throttle = cut_at(5.0)
    throttle.record(CRITICAL, "", outcome, 60.0)

    assert not throttle.should_ask(2.5, 62.0)
    assert throttle.should_ask(2.5, 62.001)


def test_a_client_that_seldom_sends_asks_however_fresh_the_reports_of_health_checks_are() -> None:
    throttle = cut_at(5.0)
    for second in range(6, 61):
        throttle.record_report(NO_CRITICAL, float(second))

    assert throttle.should_ask(2.5, 60.0)


def test_an_accept_whose_report_says_no_more_room_is_no_reason_to_send_blindly() -> None:
    throttle = cut_at(5.0)
    throttle.record(CRITICAL, "", Outcome.OK, 5.001)

    assert throttle.should_ask(2.5, 60.0)


@pytest.mark.parametrize(
    ("cut", "is_sent"),
    [
        pytest.param(0.0, True, id="nothing is refused"),
        pytest.param(2.5, True, id="at the line, and no margin"),
        pytest.param(2.51, False, id="below it"),
        pytest.param(4.0, False, id="everything is"),
    ],
)
def test_does_what_those_asked_say(cut: float, is_sent: bool) -> None:
    throttle = cut_at(5.0)

    assert throttle.admit_asked(2.5, "", cut, 30.0) is is_sent
    assert not throttle.should_ask(0.0, 32.0)  # That is as good as an answer of its own.
    assert is_sent or throttle.cause is Cause.REJECTIONS


def test_what_those_asked_say_does_not_end_with_the_asking() -> None:
    throttle = cut_at(5.0)
    assert not throttle.admit_asked(2.5, "", NO_CRITICAL, 30.0)
    throttle.record_report(NO_CRITICAL, 30.0)  # What they said comes as a report too.

    assert not throttle.admit(2.5, "", 31.9)


def test_where_nobody_answers_it_is_as_if_nobody_had_been_asked() -> None:
    throttle = cut_at(30.0)
    assert not throttle.admit_asked(2.5, "", None, 31.0)
    assert throttle.admit_asked(3.0, "", None, 31.0)
    assert throttle.admit_asked(2.5, "", None, 32.001)  # The line is too old by then.
    assert throttle.admit_asked(2.5, "", None, 31.0, is_admitted=True)


# Customers


def test_a_customer_without_quota_is_rejected_whatever_those_asked_say() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "greedy", Outcome.OUT_OF_QUOTA, tick * 0.1)
    sent = sum(throttle.admit_asked(CRITICAL, "greedy", NOTHING, 10.0) for _ in range(1000))

    # A fifth of 1,000: 200 ± 12.6, four of them.
    assert 150 <= sent <= 250
    assert throttle.admit_asked(CRITICAL, "modest", NOTHING, 10.0)


def pass_ratio_after_quota_is_back(per_second: float, after_seconds: float, seed: int) -> float:
    """Return what passes in the 30 s that begin `after_seconds` after 30 s out of quota."""
    throttle = ResponsiveThrottle(
        ResponsiveThrottleConfig(), rng=random.Random(f"{seed}/throttle"), now=0.0
    )
    rng = random.Random(f"{seed}/arrivals")
    now = 0.0
    passed: list[bool] = []
    while now < 30.0 + after_seconds + 30.0:
        is_sent = throttle.admit(CRITICAL, "greedy", now)
        if is_sent:
            outcome = Outcome.OUT_OF_QUOTA if now < 30.0 else Outcome.OK
            throttle.record(CRITICAL, "greedy", outcome, now)
        if now >= 30.0 + after_seconds:
            passed.append(is_sent)
        now += rng.expovariate(per_second)
    return sum(passed) / len(passed)


# From a fifth, q rises by a factor of 5 in 12 accepts, because K is the book's 2: ten of a step of
# 0.25 / 2, and then one of 4/3 and one of 5/3 steps, 10 + 3 = 13 steps where ln 5 = 1.61 takes
# 12.9.  The pace at the floor, which only quickens, bounds the time: 5 / 5 a second make 12 s, and
# 35 / 5 make 2 s, but the closer accepts weigh less: at most 10 a second in full, so 3 s.
@pytest.mark.parametrize(("per_second", "after_seconds"), [(35.0, 4.0), (5.0, 12.0)])
@pytest.mark.parametrize("seed", range(10))
def test_a_customer_that_has_quota_again_is_back_after_12_accepts(
    per_second: float, after_seconds: float, seed: int
) -> None:
    assert pass_ratio_after_quota_is_back(per_second, after_seconds, seed) >= 0.99


@pytest.mark.parametrize("field", ["send_anyway_seconds", "ask_after_seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_wrong_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be in"):
        ResponsiveThrottleConfig(**{field: value})  # type: ignore[arg-type]


# Timeouts, where backends report.  (Where nobody does: test_stock_backends.py.)


def timed_out(count: int) -> ResponsiveThrottle:
    throttle = make()
    for tick in range(1, count + 1):
        throttle.record(CRITICAL, "", Outcome.TIMEOUT, tick * 0.1, 1.0)
    return throttle


def passed(throttle: Throttle, now: float, level: float = 2.99) -> int:
    """Return how many of 100 pass that would wait for a second, after one that goes out anyway."""
    throttle.admit(level, "", now, 1.0)
    return sum(throttle.admit(level, "", now, 1.0) for _ in range(100))


@pytest.mark.parametrize(
    ("cut", "age", "is_throttled"),
    [
        pytest.param(NOTHING, 2.0, False, id="there is room: they come from something else"),
        pytest.param(2.0, 2.0, False, id="for all of CRITICAL"),
        pytest.param(NOTHING, 2.1, True, id="nothing has been heard for a while"),
        pytest.param(2.1, 2.0, True, id="there is no room for all of it"),
    ],
)
def test_what_a_report_says_of_timeouts(cut: float, age: float, is_throttled: bool) -> None:
    throttle = timed_out(100)
    throttle.record_report(cut, 10.0)

    # 1 of 101 by the equation.
    assert (passed(throttle, 10.0 + age) < 10) is is_throttled
    assert passed(throttle, 10.0 + age, 3.0) == 100


def test_timeouts_do_not_count_where_less_than_most_fails() -> None:
    throttle = make()
    for tick in range(1, 101):
        outcome = Outcome.TIMEOUT if tick % 5 < 2 else Outcome.OK  # 40 %
        throttle.record(CRITICAL, "", outcome, tick * 0.1, 1.0)
    throttle.record_report(2.1, 10.0)

    assert passed(throttle, 10.0) == 100


def test_where_everything_times_out_a_lower_criticality_is_refused_no_less() -> None:
    throttle = timed_out(100)
    shown = throttle.snapshot(13.0).rejection_probabilities

    assert list(shown) == pytest.approx([100 / 101] * 3 + [0.0])
    for tick in range(101):
        throttle.record(Criticality.SHEDDABLE, "", Outcome.OK, 13.0 + tick * 0.01)
    # Who is accepted though lower speaks for the higher ones: most is not lost any more.
    assert throttle.snapshot(16.1).rejection_probabilities == (0.0,) * 4


def test_nine_timeouts_are_no_evidence_and_ten_are() -> None:
    assert passed(timed_out(9), 13.0) == 100
    assert passed(timed_out(10), 13.0) < 50


def test_a_request_goes_out_if_nothing_was_sent_or_heard_for_two_seconds() -> None:
    throttle = timed_out(1000)
    throttle.record_report(NOTHING, 100.0)
    sent_at = [
        tick / 100 for tick in range(10_201, 11_000) if throttle.admit(2.5, "", tick / 100, 1.0)
    ]

    # 1 of 1,001 goes out by the equation; the others 2 s after the one before.
    assert sent_at[0] == pytest.approx(102.01)
    assert len(sent_at) in {4, 5}


@pytest.mark.parametrize(("pause", "is_held"), [(59.0, True), (60.0, False), (86_400.0, False)])
def test_what_was_heard_is_forgotten_a_minute_after_the_last(pause: float, is_held: bool) -> None:
    throttle = timed_out(100)
    throttle.record_report(NO_CRITICAL, 10.0)

    assert (passed(throttle, 10.0 + pause) < 10) is is_held
    assert throttle.is_normal(10.0 + pause) is not is_held
    assert throttle.line(10.0 + pause) == 0.0
    assert throttle.is_troubled is is_held


def test_reports_that_return_after_a_minute_begin_anew() -> None:
    throttle = cut_at(10.0)
    throttle.record_report(NOTHING, 70.0)

    assert throttle.is_normal(70.0)
    assert not throttle.is_troubled


def test_who_has_not_heard_for_long_asks_before_it_forgets() -> None:
    throttle = cut_at(10.0)

    # To ask first costs no request; if nobody answers, what was known is too old to hold.
    assert throttle.should_ask(2.5, 86_400.0)
    assert throttle.admit_asked(2.5, "", None, 86_400.0)
    assert not throttle.should_ask(2.5, 86_400.0)


def test_the_first_report_ends_the_books_throttle() -> None:
    throttle = ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(21), now=0.0)
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    assert throttle.snapshot(10.0).rejection_probabilities[CRITICAL] == pytest.approx(100 / 101)
    throttle.record_report(NOTHING, 10.0)

    assert throttle.is_normal(10.0)
