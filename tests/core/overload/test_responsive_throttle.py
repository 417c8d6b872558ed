from __future__ import annotations

import itertools
import math
import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottle, AdaptiveThrottleConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.overload.send_probability import SendProbabilityConfig
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Outcome
from evenly.errors import ConfigError
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import ALL, IdealBackend, offer

CRITICAL = Criticality.CRITICAL
CAPACITY = 50.0
NO_CRITICAL = ALL & ~(1 << CRITICAL)


def make() -> ResponsiveThrottle:
    """Return a throttle of a service whose backends report, and admit everything so far."""
    throttle = ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(21), now=0.0)
    throttle.record_report(ALL, 0.0)
    return throttle


def refused_at(now: float) -> ResponsiveThrottle:
    throttle = make()
    throttle.record(CRITICAL, "", Outcome.OVERLOADED, now)
    return throttle


def send_probability(
    throttle: Throttle, criticality: Criticality = CRITICAL, now: float = 0.0
) -> float:
    return 1.0 - throttle.snapshot(now).rejection_probabilities[criticality]


def recover(throttle: Throttle, *, seconds: int) -> list[float]:
    """Return the ratio that passes in each second at 0.7 ×, after 120 s at 10 ×."""
    rng = random.Random(21)
    backend = IdealBackend(CAPACITY)
    clock = ManualClock(0.0)
    offer(
        throttle,
        backend,
        clock=clock,
        rng=rng,
        per_second=10 * CAPACITY,
        seconds=120.0,
        reports=True,
    )
    return [
        offer(
            throttle,
            backend,
            clock=clock,
            rng=rng,
            per_second=0.7 * CAPACITY,
            seconds=1.0,
            reports=True,
        ).sent_ratio
        for _ in range(seconds)
    ]


def test_recovers_within_five_seconds_where_the_book_takes_minutes() -> None:
    ours = recover(make(), seconds=60)
    books = recover(AdaptiveThrottle(AdaptiveThrottleConfig(), rng=random.Random(21)), seconds=240)

    assert min(ours[5:]) >= 0.99
    # The first second from which on 99 % pass, for good.
    assert next(s for s in range(240) if min(books[s:]) >= 0.99) >= 120


# 60 s at C = 50 are 3000 accepts: ± 1.8 %.  Without the weight of `SendProbability` goodput falls
# to between 5 and 30 % as soon as answers are 50 ms late.
@pytest.mark.parametrize("answer_seconds", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("times", [2, 10, 100])
def test_keeps_goodput_however_late_the_answers(answer_seconds: float, times: int) -> None:
    throttle = make()
    rng = random.Random(21)
    backend = IdealBackend(CAPACITY)
    clock = ManualClock(0.0)
    tallies = [
        offer(
            throttle,
            backend,
            clock=clock,
            rng=rng,
            per_second=times * CAPACITY,
            seconds=seconds,
            reports=True,
            answer_seconds=answer_seconds,
        )
        for seconds in (10.0, 60.0)
    ]

    assert tallies[1].accepted / 60 >= 0.95 * CAPACITY
    # K = 1.1 in balance; late answers and the haste of reports add to it.
    assert tallies[1].sent / 60 <= 1.6 * CAPACITY


def test_admission_bits_bring_the_probability_back() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    assert send_probability(throttle) == pytest.approx(0.001)
    throttle.record_report(NO_CRITICAL, 10.0)
    for tick in range(1, 25):
        throttle.record_report(ALL, 10.0 + tick * 0.1)
    # 0.3 · 2.4 + 2.4 · 2.5 (the sum of 0.1 · 2 · held) = 6.72, short of ln 1000 = 6.91
    assert send_probability(throttle) == pytest.approx(0.001 * math.exp(6.72))
    throttle.record_report(ALL, 12.5)
    assert send_probability(throttle) == 1.0


def test_a_report_raises_only_the_criticalities_that_it_admits() -> None:
    throttle = make()
    for criticality in Criticality:
        for tick in range(1, 51):
            throttle.record(criticality, "", Outcome.OVERLOADED, tick * 0.1)
    # It speaks for a second, as the one before does: admitted for two.
    throttle.record_report(1 << Criticality.CRITICAL_PLUS, 5.0)

    after = [send_probability(throttle, criticality) for criticality in Criticality]
    assert after == pytest.approx([0.001, 0.001, 0.001, 0.001 * math.exp(0.3 + 2.0 * 2.0)])


def test_bits_that_are_withdrawn_start_over() -> None:
    throttle = make()
    for tick in range(1, 51):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    throttle.record_report(NO_CRITICAL, 5.0)
    throttle.record_report(ALL, 6.0)  # held = 1: · exp(0.3 + 2)
    throttle.record_report(NO_CRITICAL, 7.0)
    throttle.record_report(ALL, 8.0)  # held = 1 again

    assert send_probability(throttle) == pytest.approx(0.001 * math.exp(2.3) * math.exp(2.3))


def test_a_report_speaks_for_one_second_at_most_and_never_for_time_gone_back() -> None:
    throttle = make()
    for tick in range(1, 51):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    throttle.record_report(NO_CRITICAL, 5.0)
    throttle.record_report(ALL, 60.0)
    throttle.record_report(ALL, 50.0)

    assert send_probability(throttle) == pytest.approx(0.001 * math.exp(2.3))


def test_days_of_peace_do_not_overflow() -> None:
    throttle = make()
    for second in range(2000):
        throttle.record_report(ALL, float(second))
    throttle.record(CRITICAL, "", Outcome.OVERLOADED, 2000.0)
    throttle.record_report(ALL, 2001.0)

    assert send_probability(throttle) == 1.0


def sent(throttle: Throttle, criticality: Criticality, now: float) -> int:
    """Return how many of 1,000 at one instant are sent, after one that goes out anyway."""
    throttle.admit(criticality, "", now)
    return sum(throttle.admit(criticality, "", now) for _ in range(1000))


# One rejection after long: q = exp(−8 · 0.25 / 1.1) = 0.162, of 1,000 162 ± 12, five of them.
# What is sent most learns first that it is refused.
def test_a_criticality_that_is_seldom_sent_is_throttled_no_less_than_a_higher_one() -> None:
    throttle = refused_at(5.0)

    for lower in (Criticality.SHEDDABLE, Criticality.SHEDDABLE_PLUS):
        assert sent(throttle, lower, 5.0) == pytest.approx(162, abs=60)
        assert send_probability(throttle, lower) == send_probability(throttle, CRITICAL)
    assert sent(throttle, Criticality.CRITICAL_PLUS, 5.0) == 1000


def test_of_several_higher_ones_the_most_throttled_counts() -> None:
    throttle = refused_at(5.0)
    throttle.record(Criticality.SHEDDABLE_PLUS, "", Outcome.OVERLOADED, 5.0)
    throttle.record(Criticality.SHEDDABLE_PLUS, "", Outcome.OVERLOADED, 10.0)
    critical = send_probability(throttle, CRITICAL)
    plus = send_probability(throttle, Criticality.SHEDDABLE_PLUS)
    assert plus == pytest.approx(critical**2)

    assert send_probability(throttle, Criticality.SHEDDABLE) == plus
    assert sent(throttle, Criticality.SHEDDABLE, 10.0) < 60  # 26 ± 5
    assert sent(throttle, CRITICAL, 10.0) == pytest.approx(162, abs=60)


def test_when_the_higher_one_is_back_the_lower_one_is() -> None:
    throttle = refused_at(5.0)
    for tick in range(1, 31):
        throttle.record_report(ALL, 5.0 + tick * 0.1)

    assert sent(throttle, Criticality.SHEDDABLE, 8.0) == 1000
    assert throttle.is_normal(8.0)


# From 0.162: ten of a step of 0.25 / 11, and then m of 1 + 1/3, 1 + 2/3, … steps, until
# 10 + m + m · (m + 1) / 6 = 8 / 1.1 · 11 = 80, so m = 18 (or 85 with it).
@pytest.mark.parametrize(("accepts", "is_back"), [(27, False), (28, True)])
def test_an_accept_counts_for_every_higher_criticality(accepts: int, is_back: bool) -> None:
    throttle = refused_at(5.0)
    for tick in range(accepts):
        throttle.record(Criticality.SHEDDABLE, "", Outcome.OK, 6.0 + tick * 0.1)

    assert throttle.is_normal(10.0) is is_back


def test_an_accept_says_nothing_of_lower_criticalities() -> None:
    throttle = refused_at(5.0)
    for tick in range(100):
        throttle.record(Criticality.CRITICAL_PLUS, "", Outcome.OK, 6.0 + tick * 0.1)

    assert send_probability(throttle) == pytest.approx(math.exp(-8 * 0.25 / 1.1))


# Once a minute, and it was refused: what is sent a hundred times a second was held at 0.18 for six
# minutes, though all of it was accepted.
def test_one_bad_end_of_a_rare_criticality_does_not_hold_the_others_back() -> None:
    throttle = make()
    throttle.record_report(ALL, 59.0)
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


def test_a_request_goes_out_if_none_has_for_two_seconds() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    sent_at = [tick / 100 for tick in range(1000, 2000) if throttle.admit(CRITICAL, "", tick / 100)]

    # q = 0.001 sends one of these thousand by chance; the rest go out 2 s after the one before, the
    # first of them 2 s after the last answer.
    gaps = [after - before for before, after in itertools.pairwise(sent_at)]
    assert sent_at[0] == pytest.approx(12.0)
    assert len(sent_at) in {4, 5}
    assert max(gaps) == pytest.approx(2.0)


def test_two_seconds_without_a_request_count_from_the_newest_report_too() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    for second in range(11, 21):
        throttle.record_report(NO_CRITICAL, float(second))

    # The last report came at 20; nothing was ever sent.  Of five tries, q = 0.001 sends none.
    assert [throttle.admit(CRITICAL, "", now) for now in (20.0, 21.99, 22.0)] == [
        False,
        False,
        True,
    ]
    throttle.record_report(NO_CRITICAL, 20.5)  # news that comes late: the request of 22 is newer
    assert [throttle.admit(CRITICAL, "", now) for now in (23.99, 24.0)] == [False, True]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(7.0, False, id="the rejection is 2 s old"),
        pytest.param(7.001, True, id="the rejection is older"),
    ],
)
def test_asks_when_all_that_is_known_is_an_old_rejection(now: float, expected: bool) -> None:
    throttle = refused_at(5.0)

    assert throttle.should_ask(CRITICAL, now) is expected
    assert not throttle.should_ask(Criticality.CRITICAL_PLUS, now)


def test_does_not_ask_after_better_news() -> None:
    accepted = refused_at(5.0)
    accepted.record(CRITICAL, "", Outcome.OK, 5.1)
    admitted = refused_at(5.0)
    admitted.record_report(ALL, 5.1)

    assert not accepted.should_ask(CRITICAL, 60.0)
    assert not admitted.should_ask(CRITICAL, 60.0)


def test_a_client_that_seldom_sends_asks_however_fresh_the_reports_of_health_checks_are() -> None:
    throttle = refused_at(5.0)
    for second in range(6, 61):
        throttle.record_report(NO_CRITICAL, float(second))
    assert throttle.should_ask(CRITICAL, 60.0)

    throttle.record(CRITICAL, "", Outcome.OVERLOADED, 60.0)  # an answer of its own
    throttle.record_report(NO_CRITICAL, 62.0)
    assert not throttle.should_ask(CRITICAL, 62.0)
    assert throttle.should_ask(CRITICAL, 62.001)


def test_an_accept_whose_report_says_no_more_room_is_no_reason_to_send_blindly() -> None:
    throttle = make()
    throttle.record_report(NO_CRITICAL, 5.0)
    throttle.record(CRITICAL, "", Outcome.OK, 5.001)

    assert throttle.should_ask(CRITICAL, 60.0)


def test_does_what_those_asked_say() -> None:
    yes, no, nobody = refused_at(5.0), refused_at(5.0), refused_at(5.0)

    assert yes.admit_asked(CRITICAL, "", 1 << CRITICAL, 30.0)
    assert not no.admit_asked(CRITICAL, "", NO_CRITICAL, 30.0)
    assert nobody.admit_asked(CRITICAL, "", None, 30.0)  # as `admit`: none has gone out for 2 s
    # A no counts as a rejection, and as news: nothing is sent merely because nothing was.
    assert send_probability(no) < 0.2 * send_probability(yes)
    assert sum(no.admit(CRITICAL, "", 31.9) for _ in range(1000)) < 100


def test_a_customer_without_quota_is_rejected_whatever_those_asked_say() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "greedy", Outcome.OUT_OF_QUOTA, tick * 0.1)
    throttle.admit(CRITICAL, "greedy", 10.0)  # goes out anyway: none has for 2 s
    sent = sum(throttle.admit_asked(CRITICAL, "greedy", ALL, 10.0) for _ in range(1000))

    # A fifth of 1,000: 200 ± 12.6, four of them.
    assert 150 <= sent <= 250
    assert throttle.admit_asked(CRITICAL, "modest", ALL, 10.0)


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


def passed(throttle: Throttle, now: float, criticality: Criticality = CRITICAL) -> int:
    """Return how many of 100 pass that would wait for a second, after one that goes out anyway."""
    throttle.admit(criticality, "", now, 1.0)
    return sum(throttle.admit(criticality, "", now, 1.0) for _ in range(100))


@pytest.mark.parametrize(
    ("admits", "age", "is_throttled"),
    [
        pytest.param(ALL, 2.0, False, id="there is room: they come from something else"),
        pytest.param(ALL, 2.1, True, id="nothing has been heard for a while"),
        pytest.param(NO_CRITICAL, 2.0, True, id="there is no room"),
    ],
)
def test_what_a_report_says_of_timeouts(admits: int, age: float, is_throttled: bool) -> None:
    throttle = timed_out(100)
    throttle.record_report(admits, 10.0)

    # 1 of 101 by the equation.
    assert (passed(throttle, 10.0 + age) < 10) is is_throttled
    assert passed(throttle, 10.0 + age, Criticality.CRITICAL_PLUS) == 100


def test_timeouts_do_not_count_where_less_than_most_fails() -> None:
    throttle = make()
    for tick in range(1, 101):
        outcome = Outcome.TIMEOUT if tick % 5 < 2 else Outcome.OK  # 40 %
        throttle.record(CRITICAL, "", outcome, tick * 0.1, 1.0)
    throttle.record_report(NO_CRITICAL, 10.0)

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


@pytest.mark.parametrize(("pause", "is_held"), [(59.0, True), (60.0, False), (86_400.0, False)])
def test_what_reports_said_is_forgotten_a_minute_after_the_last(
    pause: float, is_held: bool
) -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    throttle.record_report(NO_CRITICAL, 10.0)

    assert (passed(throttle, 10.0 + pause) < 10) is is_held
    assert throttle.is_normal(10.0 + pause) is not is_held
    # To ask first costs no request: that is not forgotten.
    assert throttle.should_ask(CRITICAL, 10.0 + pause)


def test_reports_that_return_after_a_minute_begin_anew() -> None:
    throttle = make()
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    throttle.record_report(ALL, 70.0)

    assert throttle.is_normal(70.0)
    assert not throttle.is_troubled


def test_the_first_report_ends_the_books_throttle() -> None:
    throttle = ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(21), now=0.0)
    for tick in range(1, 101):
        throttle.record(CRITICAL, "", Outcome.OVERLOADED, tick * 0.1)
    assert send_probability(throttle) == pytest.approx(1 / 101)
    throttle.record_report(ALL, 10.0)

    assert throttle.is_normal(10.0)
