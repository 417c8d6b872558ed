"""SRE book: throttling "may not work well with clients that only very sporadically send"."""

from __future__ import annotations

import math
import random

from evenly.core.level import draw_luck
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.request import Outcome
from evenly.testing import ManualClock
from tests.core.overload.ideal_backend import CRITICAL, CuttingBackend, Tally, let_pass


def sporadic(*, asks: bool) -> tuple[Tally, int]:
    """Let 2,000 clients send 0.1 a second each to ten backends with room for a tenth of it."""
    rng = random.Random(21)
    clock = ManualClock(0.0)
    backends = [CuttingBackend(2.0, clock=clock, seed=seed) for seed in range(10)]
    throttles = [
        ResponsiveThrottle(ResponsiveThrottleConfig(), rng=random.Random(seed), now=0.0)
        for seed in range(2000)
    ]
    tally = Tally()
    probes = 0
    while clock() < 120.0:
        let_pass(rng.expovariate(200.0), backends, clock)
        now = clock()
        if clock() < 60.0:  # Everybody sends blindly until first refused.
            tally, probes = Tally(), 0
        tally.requests += 1
        throttle = rng.choice(throttles)
        backend, other = rng.sample(backends, 2)
        luck = draw_luck(rng)
        level = CRITICAL + luck
        line = 0.0
        if asks and throttle.should_ask(level, now):
            probes += 2
            answers = backend.cut(), other.cut()
            for cut in answers:
                throttle.record_report(cut, now)
            line = min(answers)
            is_sent = throttle.admit_asked(level, "", line, now)
            backend = backend if answers[0] <= level else other
        else:
            is_sent = throttle.admit(level, "", now)
            line = throttle.line(now)
        if is_sent:
            outcome, _ = backend.serve(luck, line)
            tally.sent += 1
            tally.accepted += outcome is Outcome.OK
            throttle.record_report(backend.cut(), now)
            throttle.record(CRITICAL, "", outcome, now)
    return tally, probes


# 60 s of 20 a second are 1,200: ± 3 %.
def test_sporadic_clients_that_ask_keep_the_load_near_capacity() -> None:
    tally, probes = sporadic(asks=True)

    # A quarter of what is served is refused besides: of the fifth that comes within 2 s of the last
    # news nobody asks, and a refusal costs a backend next to nothing.
    assert 1.0 <= tally.sent / 1200 <= 1.3
    assert tally.accepted / 1200 >= 0.97
    # Two before each request, except those that come within 2 s of the last news, 1 − exp(−0.2),
    # and those whom the last that was heard would not refuse.
    assert 1.0 < probes / tally.requests <= 2 * math.exp(-0.2) * 1.05


def test_sporadic_clients_that_do_not_ask_send_nearly_everything() -> None:
    tally, _ = sporadic(asks=False)

    assert tally.sent / 1200 > 5.0
