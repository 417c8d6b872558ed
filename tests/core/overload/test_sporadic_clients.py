"""SRE book: throttling "may not work well with clients that only very sporadically send"."""

from __future__ import annotations

import math
import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.request import Outcome
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import IdealBackend, Tally

CRITICAL = Criticality.CRITICAL


def sporadic(*, asks: bool) -> tuple[Tally, int]:
    """Let 2,000 clients send 0.1 a second each to ten backends with room for a tenth of it."""
    rng = random.Random(21)
    backends = [IdealBackend(2.0) for _ in range(10)]
    throttles = [
        ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(seed), now=0.0)
        for seed in range(2000)
    ]
    clock = ManualClock(0.0)
    tally = Tally()
    probes = 0
    while clock() < 120.0:
        clock.advance(rng.expovariate(200.0))
        now = clock()
        if clock() < 60.0:  # Everybody sends blindly until first refused: six requests each.
            tally, probes = Tally(), 0
        tally.requests += 1
        throttle = rng.choice(throttles)
        backend, other = rng.sample(backends, 2)
        if asks and throttle.should_ask(CRITICAL, now):
            probes += 2
            answers = backend.admits(now), other.admits(now)
            for admits in answers:
                throttle.record_report(admits, now)
            is_sent = throttle.admit_asked(CRITICAL, "", answers[0] | answers[1], now)
            backend = backend if answers[0] else other
        else:
            is_sent = throttle.admit(CRITICAL, "", now)
        if is_sent:
            outcome = backend.serve(now)
            tally.sent += 1
            tally.accepted += outcome is Outcome.OK
            throttle.record_report(backend.admits(now), now)
            throttle.record(CRITICAL, "", outcome, now)
    return tally, probes


# 60 s of 20 accepts a second are 1200: ± 3 %.
def test_sporadic_clients_that_ask_keep_the_load_near_capacity() -> None:
    tally, probes = sporadic(asks=True)

    assert tally.sent / 1200 == pytest.approx(1.0, abs=0.1)
    assert tally.accepted / 1200 >= 0.95
    # Two before each request, except those that come within 2 s of the last news: 1 − exp(−0.2).
    assert probes / tally.requests == pytest.approx(2 * math.exp(-0.2), rel=0.05)


def test_sporadic_clients_that_do_not_ask_send_nearly_everything() -> None:
    tally, _ = sporadic(asks=False)

    assert tally.sent / 1200 > 5.0
