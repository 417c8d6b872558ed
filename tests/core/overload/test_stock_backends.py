"""In front of backends that know nothing of evenly the default throttle must be safe.

Nobody reports here.  Every story is told with seeds that stand here, and so replays exactly.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottle, AdaptiveThrottleConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Cause, Outcome
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import IdealBackend
from tests.core.overload.ideal_backend import Tally as IdealTally
from tests.core.overload.ideal_backend import offer as offer_ideal

CRITICAL = Criticality.CRITICAL
MINUTES = 60.0


def responsive(seed: int = 1) -> ResponsiveThrottle:
    return ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(seed), now=0.0)


def adaptive(seed: int = 1) -> AdaptiveThrottle:
    return AdaptiveThrottle(AdaptiveThrottleConfig(), rng=random.Random(seed))


@dataclass
class Tally:
    offered: int = 0
    sent: int = 0
    good: int = 0
    """Requests that would be answered if they were sent ..."""
    good_refused: int = 0
    """... and were refused here."""


Fate = Callable[[random.Random], tuple[Outcome, float]]
"""Draw how a request ends that is sent, and the time that it may take."""


def timing_out(ratio: float) -> Fate:
    return lambda rng: (Outcome.TIMEOUT if rng.random() < ratio else Outcome.OK, 1.0)


def offer(
    throttle: Throttle,
    fate: Fate,
    *,
    per_second: float,
    seconds: float,
    seed: int,
    begin: float = 0.0,
) -> Tally:
    """Send Poisson arrivals: answers take 10 ms, timeouts as long as they may take."""
    rng = random.Random(f"{seed}/offered")
    ends: list[tuple[float, int, Outcome, float]] = []
    tally = Tally()
    now = begin
    while (now := now + rng.expovariate(per_second)) < begin + seconds:
        while ends and ends[0][0] <= now:
            end_at, _, outcome, allowed = heapq.heappop(ends)
            throttle.record(CRITICAL, "", outcome, end_at, allowed)
        outcome, allowed = fate(rng)
        is_good = outcome is Outcome.OK
        is_sent = throttle.admit(CRITICAL, "", now, allowed)
        tally.offered += 1
        tally.sent += is_sent
        tally.good += is_good
        tally.good_refused += is_good and not is_sent
        if is_sent:
            took = allowed if outcome is Outcome.TIMEOUT else 0.01
            heapq.heappush(ends, (now + took, tally.offered, outcome, allowed))
    return tally


# The rarer the requests, the more luck decides: hence more seeds.
@pytest.mark.parametrize(("per_second", "seeds"), [(1.0, 20), (5.0, 8), (20.0, 3), (50.0, 2)])
@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.15, 0.3])
def test_timeouts_of_up_to_30_percent_refuse_hardly_a_good_request(
    per_second: float, seeds: int, ratio: float
) -> None:
    for seed in range(seeds):
        tally = offer(
            responsive(seed),
            timing_out(ratio),
            per_second=per_second,
            seconds=10 * MINUTES,
            seed=seed,
        )

        assert tally.good_refused <= 0.01 * tally.good, (seed, tally)


def one_of_ten(rng: random.Random) -> tuple[Outcome, float]:
    return (Outcome.TIMEOUT, 1.0) if rng.randrange(10) == 0 else (Outcome.OK, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_one_method_of_ten_that_always_times_out_harms_nobody_else(seed: int) -> None:
    tally = offer(responsive(seed), one_of_ten, per_second=20.0, seconds=10 * MINUTES, seed=seed)

    assert tally.good_refused == 0


def ends_in_a_row(throttle: Throttle, outcome: Outcome, count: int, allowed: float) -> float:
    """Let so many requests end one after another; return when the last has."""
    now = 0.0
    for _ in range(count):
        is_sent = throttle.admit(CRITICAL, "", now, allowed)
        now += allowed
        if is_sent:
            throttle.record(CRITICAL, "", outcome, now, allowed)
    return now


@pytest.mark.parametrize("allowed", [0.02, 1.0, math.inf])
def test_a_deadline_that_is_too_tight_says_nothing_of_other_requests(allowed: float) -> None:
    throttle = responsive()
    now = ends_in_a_row(throttle, Outcome.TIMEOUT, 100, 0.003)
    assert not throttle.admit(CRITICAL, "", now, 0.003)  # of its like, it does
    refused = 0
    for _ in range(200):
        if throttle.admit(CRITICAL, "", now, allowed):
            now += 0.005
            throttle.record(CRITICAL, "", Outcome.OK, now)
        else:
            refused += 1

    assert refused == 0


def test_one_timeout_refuses_nothing() -> None:
    throttle = responsive()
    throttle.record(CRITICAL, "", Outcome.TIMEOUT, 1.0, 1.0)

    assert all(throttle.admit(CRITICAL, "", 1.0 + second, 1.0) for second in range(100))


@pytest.mark.parametrize("allowed", [0.7, 1.0, 2.0, math.inf])
def test_where_everything_times_out_what_would_not_wait_longer_is_throttled(
    allowed: float,
) -> None:
    tally = offer(
        responsive(),
        lambda _rng: (Outcome.TIMEOUT, allowed if math.isfinite(allowed) else 1.0),
        per_second=20.0,
        seconds=10 * MINUTES,
        seed=1,
    )
    # In equation 21-1 what is refused counts: 1 of R + 1 goes out, and as R is what was offered in
    # two minutes, that is about one in these.  Until the first ten have failed, all go out: for the
    # time that a timeout takes, 20 a second.
    assert tally.sent <= 10 + 20 * 2.0 + 40, tally
    assert tally.offered >= 11_000


def accept_ratio(ratio: float) -> Fate:
    return lambda rng: (Outcome.OK if rng.random() < ratio else Outcome.OVERLOADED, 1.0)


# 503 with Retry-After.  The two throttles draw the same luck and see the same ends, so that they
# do exactly the same.
@pytest.mark.parametrize("accepted", [0.0, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_rejections_are_throttled_as_equation_21_1_says(accepted: float, seed: int) -> None:
    ours, books = (
        offer(
            throttle,
            accept_ratio(accepted),
            per_second=20.0,
            seconds=10 * MINUTES,
            seed=seed,
        )
        for throttle in (responsive(seed), adaptive(seed))
    )

    assert ours == books
    assert (ours.sent < 0.5 * ours.offered) is (accepted < 0.5), ours


# In the second minute, that is: before anything is known everything goes out.
@pytest.mark.parametrize("times", [2.0, 10.0])
def test_a_backend_that_accepts_what_it_can_gets_twice_that(times: float) -> None:
    seen: list[list[IdealTally]] = []
    for throttle in (responsive(), adaptive()):
        backend, clock, rng = IdealBackend(50.0), ManualClock(0.0), random.Random(21)
        seen.append(
            [
                offer_ideal(
                    throttle, backend, clock=clock, rng=rng, per_second=times * 50.0, seconds=60.0
                )
                for _ in range(2)
            ]
        )

    assert seen[0] == seen[1]
    assert seen[0][1].sent / seen[0][1].accepted == pytest.approx(2.0, rel=0.05)


def test_rejections_and_timeouts_that_are_most_together_are_throttled() -> None:
    def fate(rng: random.Random) -> tuple[Outcome, float]:
        ends = (Outcome.OK, Outcome.OVERLOADED, Outcome.TIMEOUT)
        return rng.choices(ends, (0.4, 0.3, 0.3))[0], 1.0

    tally = offer(responsive(), fate, per_second=20.0, seconds=10 * MINUTES, seed=1)

    # Neither are most alone: without the other, six tenths of what is sent would be too little.
    assert tally.sent < 0.5 * tally.offered, tally


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.OVERLOADED, Outcome.OUT_OF_QUOTA])
@pytest.mark.parametrize("pause", [60.0, 86_400.0])
def test_after_a_pause_nothing_is_held_against_requests(outcome: Outcome, pause: float) -> None:
    throttle = responsive()
    now = 0.0
    for _ in range(3000):
        now += 0.02
        if throttle.admit(CRITICAL, "greedy", now, 1.0):
            throttle.record(CRITICAL, "greedy", outcome, now, 1.0)
    assert sum(throttle.admit(CRITICAL, "greedy", now, 1.0) for _ in range(100)) < 50
    now += pause

    assert throttle.is_normal(now)
    assert throttle.snapshot(now).throttled_customers == ()
    assert all(throttle.admit(CRITICAL, "greedy", now, 1.0) for _ in range(3000))
    throttle.record(CRITICAL, "greedy", Outcome.OK, now)
    assert not throttle.is_troubled


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Outcome.TIMEOUT, Cause.TIMEOUTS),
        (Outcome.OVERLOADED, Cause.REJECTIONS),
        (Outcome.OUT_OF_QUOTA, Cause.QUOTA),
    ],
)
@pytest.mark.parametrize("make", [responsive, adaptive])
def test_it_says_why(make: Callable[[], Throttle], outcome: Outcome, cause: Cause) -> None:
    throttle = make()
    for tick in range(100):
        throttle.record(CRITICAL, "greedy", outcome, tick * 0.1, 1.0)
    while throttle.admit(CRITICAL, "greedy", 10.0, 1.0):
        pass

    assert throttle.cause is cause


def test_it_costs_nothing_while_there_is_peace() -> None:
    throttle = responsive()
    for tick in range(100):
        throttle.record(CRITICAL, "", Outcome.OK, tick * 0.1)

    assert not throttle.is_troubled
