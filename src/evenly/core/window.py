"""Remember the recent past in bounded space: counts, averages and token buckets.

SRE book, chapter 21: client-side throttling keeps "the last two minutes of its history"; the
executor load average is smoothed "with exponential decay"; quotas and retry budgets are buckets.

Nothing here reads a clock: each call is told `now`, in seconds from any origin.  The clock may
stand still, and may jump ahead by hours.  It should not go back; if it does, a `now` before the
latest one seen is taken for that latest one: nothing decays twice, and nothing is minted.

These run once per request.  Hence the shape of the code: one comparison decides whether time has
moved at all, and a wrong amount is refused by one chain that NaN fails.
"""

from __future__ import annotations

import math
from typing import final

from evenly.core import check
from evenly.errors import ConfigError

__all__ = ["DecayingAverage", "DecayingCount", "SlidingCount", "TokenBucket"]

# Beyond any CPU count or request rate, and far enough from the largest float that no sum overflows.
_MOST = 1e15


@final
class SlidingCount:
    """Count what happened in the last `window_seconds`, in a ring of buckets.

    With w = window_seconds / buckets, an amount of age a (now − when it was added) is

        counted      if a <= window_seconds − w
        not counted  if a >= window_seconds

    and in between either, depending on where in its bucket it fell; all of this to within the
    rounding of `now`.  So the total is that of a window whose length lies between those two.

    An amount costs one addition.  Moving on to another bucket costs one pass over the ring, at most
    once per w whatever the rate of calls; memory is `buckets` floats.
    """

    __slots__ = ("_at", "_bucket_ends_at", "_bucket_seconds", "_ring", "_total", "_window_seconds")

    def __init__(self, window_seconds: float, buckets: int = 60) -> None:
        # 60 buckets: the window is exact to 1.7 %, which is 2 s of the book's two minutes.
        check.positive("window_seconds", window_seconds)
        check.count("buckets", buckets, 1, 10_000)
        self._window_seconds = window_seconds
        self._bucket_seconds = window_seconds / buckets
        self._bucket_ends_at = -math.inf
        self._ring = [0.0] * buckets
        self._at = 0
        self._total = 0.0

    def add(self, now: float, amount: float = 1.0) -> None:
        """Count `amount` as having happened now."""
        if not 0.0 <= amount <= _MOST:
            raise ConfigError(_wrong("amount", amount))
        if now >= self._bucket_ends_at:
            self._advance(now)
        self._ring[self._at] += amount
        self._total += amount

    def total(self, now: float) -> float:
        """Return the amount added in the last `window_seconds`."""
        if now >= self._bucket_ends_at:
            self._advance(now)
        return self._total

    def _advance(self, now: float) -> None:
        ring = self._ring
        late_seconds = now - self._bucket_ends_at
        if late_seconds >= self._window_seconds:  # Even the newest bucket is too old.
            ring[:] = [0.0] * len(ring)
            self._total = 0.0
            self._bucket_ends_at = now + self._bucket_seconds
            return
        steps = int(late_seconds / self._bucket_seconds) + 1
        for _ in range(min(steps, len(ring))):
            self._at = (self._at + 1) % len(ring)
            ring[self._at] = 0.0
        self._bucket_ends_at += steps * self._bucket_seconds
        # Summed anew rather than subtracted from, so that rounding errors leave with their bucket.
        self._total = sum(ring)


@final
class DecayingCount:
    """Count what happened lately, older amounts weighing less.

        value = Σ amount · exp(−age / decay_seconds)

    At a steady rate of r per second it settles at r · decay_seconds.
    """

    __slots__ = ("_at", "_count", "_decay_seconds")

    def __init__(self, decay_seconds: float) -> None:
        check.positive("decay_seconds", decay_seconds)
        self._decay_seconds = decay_seconds
        self._at = -math.inf
        self._count = 0.0

    def add(self, now: float, amount: float = 1.0) -> None:
        """Count `amount` as having happened now."""
        if not 0.0 <= amount <= _MOST:
            raise ConfigError(_wrong("amount", amount))
        if now > self._at:
            self._count *= math.exp((self._at - now) / self._decay_seconds)
            self._at = now
        self._count += amount

    def value(self, now: float) -> float:
        """Return the decayed count."""
        if now > self._at:
            return self._count * math.exp((self._at - now) / self._decay_seconds)
        return self._count


@final
class DecayingAverage:
    """Average a signal over time, the recent past weighing more.

    The signal x is a step function: each recorded value holds until the next record.  The average y
    is its continuous-time exponentially weighted average, the solution of

        dy/dt = (x − y) / decay_seconds

    so a value weighs by *how long* it held, never by how often it was recorded: recording an
    unchanged value again changes nothing, and a value replaced at the same instant has no weight.
    Record every change of the signal, or the time in between is credited to the wrong value.

    Before the first record the average is 0.0; the first value then counts as having held forever,
    so that there is no warm-up during which the average is too low.
    """

    __slots__ = ("_at", "_average", "_decay_seconds", "_signal")

    def __init__(self, decay_seconds: float) -> None:
        check.positive("decay_seconds", decay_seconds)
        self._decay_seconds = decay_seconds
        self._at = -math.inf
        self._average = 0.0
        self._signal = 0.0

    def record(self, now: float, value: float) -> None:
        """Say that the signal has this value from now on."""
        if not -_MOST <= value <= _MOST:
            raise ConfigError(f"value must be in [{-_MOST:g}, {_MOST:g}], not {value!r}")
        at = self._at
        if now > at:
            if at == -math.inf:
                self._average = value
            else:  # As in `value`, which is one call more.
                kept = math.exp((at - now) / self._decay_seconds)
                self._average = kept * self._average + (1.0 - kept) * self._signal
            self._at = now
        self._signal = value

    def value(self, now: float) -> float:
        """Return the average, the present signal included."""
        if now > self._at:
            kept = math.exp((self._at - now) / self._decay_seconds)
            # A convex combination: never outside of what was recorded.
            return kept * self._average + (1.0 - kept) * self._signal
        return self._average


@final
class TokenBucket:
    """Hold tokens that trickle in at `rate_per_second`, up to `capacity`.

    Pre-paid use (`take`) asks first; post-paid use (`charge`) settles a cost known only afterwards
    and may leave a debt, which the trickle pays off before anything can be taken again.

    Time starts with the first call that is told `now`.  Tokens come from the trickle alone: what is
    ever taken is at most the first level plus the trickle since, whatever the updates in between.
    """

    __slots__ = ("_at", "_capacity", "_level", "_rate_per_second")

    def __init__(self, rate_per_second: float, capacity: float, level: float | None = None) -> None:
        check.number("rate_per_second", rate_per_second, 0.0, _MOST)
        check.number("capacity", capacity, 0.0, _MOST)
        if level is None:
            level = capacity
        check.number("level", level, 0.0, capacity)
        self._rate_per_second = rate_per_second
        self._capacity = capacity
        self._level = level
        self._at = math.inf  # not begun

    @property
    def rate_per_second(self) -> float:
        """The trickle, in tokens per second."""
        return self._rate_per_second

    @property
    def capacity(self) -> float:
        """The most that the bucket can hold."""
        return self._capacity

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take `amount` and return True; or change nothing and return False if there is less."""
        if not 0.0 <= amount <= _MOST:
            raise ConfigError(_wrong("amount", amount))
        self._refill(now)
        if self._level < amount:
            return False
        self._level -= amount
        return True

    def charge(self, now: float, amount: float) -> None:
        """Take `amount` whether it is there or not: the level may fall below zero."""
        if not 0.0 <= amount <= _MOST:
            raise ConfigError(_wrong("amount", amount))
        self._refill(now)
        self._level -= amount

    def level(self, now: float) -> float:
        """Return the tokens there now; a debt is negative."""
        self._refill(now)
        return self._level

    def seconds_until(self, now: float, amount: float = 1.0) -> float:
        """Return how long until `amount` could be taken, if nobody else takes any; `inf` if never.

        Rounding may leave the bucket a hair short after exactly that wait.  The answer is therefore
        0.0 only if the tokens are there, and otherwise at least one step of the float `now`: a
        caller that waits and asks again always gets ahead.
        """
        if not 0.0 <= amount <= _MOST:
            raise ConfigError(_wrong("amount", amount))
        self._refill(now)
        missing = amount - self._level
        if missing <= 0.0:
            return 0.0
        if amount > self._capacity or self._rate_per_second == 0.0:
            return math.inf
        return max(missing / self._rate_per_second, math.ulp(now))

    def update(
        self,
        now: float,
        *,
        rate_per_second: float | None = None,
        capacity: float | None = None,
    ) -> None:
        """Change rate or capacity from now on; what no longer fits is lost, nothing is added."""
        if rate_per_second is not None:
            check.number("rate_per_second", rate_per_second, 0.0, _MOST)
        if capacity is not None:
            check.number("capacity", capacity, 0.0, _MOST)
        self._refill(now)  # Time until now is paid at the old rate.
        if rate_per_second is not None:
            self._rate_per_second = rate_per_second
        if capacity is not None:
            self._capacity = capacity
            self._level = min(self._level, capacity)

    def _refill(self, now: float) -> None:
        if now > self._at:
            level = self._level + (now - self._at) * self._rate_per_second
            self._level = level if level < self._capacity else self._capacity
            self._at = now
        elif self._at == math.inf:
            self._at = now


def _wrong(name: str, value: float) -> str:
    return f"{name} must be in [0, {_MOST:g}], not {value!r}"
