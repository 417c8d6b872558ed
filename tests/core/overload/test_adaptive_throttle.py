from __future__ import annotations

import math
import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottle, AdaptiveThrottleConfig
from evenly.core.request import Outcome
from evenly.errors import ConfigError
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import IdealBackend, offer

CRITICAL = Criticality.CRITICAL
CAPACITY = 50.0


def throttle_after(*, requests: int, accepts: int, clock: ManualClock) -> AdaptiveThrottle:
    throttle = AdaptiveThrottle(AdaptiveThrottleConfig(), rng=random.Random(1))
    for number in range(requests):
        outcome = Outcome.OK if number < accepts else Outcome.OVERLOADED
        throttle.record(CRITICAL, "", outcome, clock())
    return throttle


def rejection_probability(throttle: AdaptiveThrottle, now: float) -> float:
    return throttle.snapshot(now).rejection_probabilities[CRITICAL]


@pytest.mark.parametrize(
    ("requests", "accepts", "expected"),
    [
        pytest.param(0, 0, 0.0, id="no traffic"),
        pytest.param(100, 50, 0.0, id="exactly K times the accepts"),
        pytest.param(100, 25, 50 / 101, id="half of the requests are excess"),
        pytest.param(100, 0, 100 / 101, id="never certain, so probes get through"),
    ],
)
def test_rejection_probability(requests: int, accepts: int, expected: float) -> None:
    clock = ManualClock()
    throttle = throttle_after(requests=requests, accepts=accepts, clock=clock)

    assert rejection_probability(throttle, clock()) == pytest.approx(expected)


def test_admit_draws_from_the_rejection_probability() -> None:
    clock = ManualClock()
    draws = 4000
    rejected = 0
    for seed in range(draws):
        throttle = throttle_after(requests=4, accepts=1, clock=clock)  # (4 − 2) / 5 = 0.4
        throttle._rng.seed(seed)  # another draw each time from the same history
        rejected += not throttle.admit(CRITICAL, "", clock())

    # Standard deviation √(0.4 · 0.6 / 4000) = 0.0077; four of them.
    assert rejected / draws == pytest.approx(0.4, abs=0.031)


def test_locally_rejected_requests_count_and_admitted_ones_only_at_their_end() -> None:
    clock = ManualClock()
    throttle = throttle_after(requests=10, accepts=3, clock=clock)
    answers = [throttle.admit(CRITICAL, "", clock()) for _ in range(50)]
    rejected = answers.count(False)

    # The probability is that of 10 + rejected requests, whatever was admitted meanwhile.
    assert 10 < rejected < 50
    requests = 10 + rejected
    expected = (requests - 2 * 3) / (requests + 1)
    assert rejection_probability(throttle, clock()) == pytest.approx(expected)


def test_history_is_two_minutes() -> None:
    clock = ManualClock()
    throttle = throttle_after(requests=100, accepts=0, clock=clock)
    clock.advance(117.9)  # the window less one of its 60 buckets of 2 s
    assert rejection_probability(throttle, clock()) == pytest.approx(100 / 101)
    clock.advance(2.2)
    assert rejection_probability(throttle, clock()) == 0.0
    assert throttle.is_normal(clock())


def test_accepts_just_enough_for_normal_sending_are_not_yet_normal() -> None:
    clock = ManualClock()
    throttle = throttle_after(requests=100, accepts=60, clock=clock)

    assert rejection_probability(throttle, clock()) == 0.0
    assert not throttle.is_normal(clock())


# Warm-up: what the backend had saved for the first second of overload counts as accepts until it
# leaves the history, so the steady state begins after one window.
# What reaches the backend in 60 s is K · 50 · 60 ≥ 3300 independent draws: a standard deviation
# is at most √3300 / 3300 = 1.7 %, and 5 % is three of them.  K = 2 at exactly 2 × is the edge:
# nothing is in excess on average, so that what is missing from 2 · C is what chance rejects.
@pytest.mark.parametrize("multiplier", [2.0, 1.1])
@pytest.mark.parametrize("times", [2, 5, 10, 100])
def test_load_on_an_ideal_backend_is_k_times_its_capacity(multiplier: float, times: int) -> None:
    rng = random.Random(21)
    throttle = AdaptiveThrottle(AdaptiveThrottleConfig(accepts_multiplier=multiplier), rng=rng)
    backend = IdealBackend(CAPACITY)
    clock = ManualClock()
    per_second = times * CAPACITY
    offer(throttle, backend, clock=clock, rng=rng, per_second=per_second, seconds=120)
    tally = offer(throttle, backend, clock=clock, rng=rng, per_second=per_second, seconds=60)

    assert tally.sent / 60 == pytest.approx(multiplier * CAPACITY, rel=0.05)


def test_recovery_takes_minutes() -> None:
    rng = random.Random(21)
    throttle = AdaptiveThrottle(AdaptiveThrottleConfig(), rng=rng)
    backend = IdealBackend(CAPACITY)
    clock = ManualClock()
    offer(throttle, backend, clock=clock, rng=rng, per_second=10 * CAPACITY, seconds=120)
    minutes = [
        offer(throttle, backend, clock=clock, rng=rng, per_second=0.7 * CAPACITY, seconds=60)
        for _ in range(4)
    ]

    # For two minutes the window still holds the overload; then it must fill with accepts.
    passed = [round(tally.sent_ratio, 2) for tally in minutes]
    assert passed[0] < 0.3
    assert passed[1] < 0.4
    assert passed[2] < 0.9
    assert passed[3] > 0.98


@pytest.mark.parametrize("field", ["accepts_multiplier", "window_seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_wrong_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be in"):
        AdaptiveThrottleConfig(**{field: value})
