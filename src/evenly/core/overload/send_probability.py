"""Control the probability with which requests of a customer that is out of quota are sent.

SRE book, chapter 21, "Client-Side Throttling", whose equation 21-1 remembers two minutes and so
takes minutes to forgive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from evenly.core import check

__all__ = ["SendProbability", "SendProbabilityConfig"]


@final
@check.gone(
    dict.fromkeys(
        ("report_max_seconds", "growth_per_second", "growth_per_second_squared"),
        "the controller is for customers alone, of whose quota reports say nothing",
    )
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SendProbabilityConfig:
    """Set the controller; the defaults come from simulations (`docs/throttle.md`)."""

    accepts_multiplier: float = 1.1
    """K: how many requests reach the backend per accept, in balance.  The book prefers 2, because
    it learns faster of a recovery."""
    step: float = 0.25
    """How far one answer moves the logarithm of the probability, rises and falls together."""
    run_free: float = 10.0
    """So many accepts in a row are no news: with K = 1.1 a rejection is due every 11 requests."""
    run_scale: float = 3.0
    """So many further accepts in a row make the rise one step larger."""
    run_max_factor: float = 16.0
    gap_seconds: float = 0.1
    """Answers that come closer together than this weigh less; rejections further apart, more."""
    gap_max_factor: float = 8.0
    gap_smoothing_ratio: float = 0.125
    """The share of the newest gap in the average by which answers are weighed."""
    min_probability: float = 0.001
    """The floor: holds the load at K times capacity up to a 1,000-fold overload."""

    def __post_init__(self) -> None:
        # At 1 the rise would be 0, and nothing would ever recover.
        check.number("accepts_multiplier", self.accepts_multiplier, 1.001, 1000.0)
        check.number("step", self.step, 0.001, 10.0)
        check.number("run_free", self.run_free, 0.0, 1e6)
        check.number("run_scale", self.run_scale, 0.001, 1e6)
        check.number("run_max_factor", self.run_max_factor, 1.0, 1000.0)
        check.number("gap_seconds", self.gap_seconds, 0.001, 3600.0)
        check.number("gap_max_factor", self.gap_max_factor, 1.0, 1000.0)
        check.number("gap_smoothing_ratio", self.gap_smoothing_ratio, 0.001, 1.0)
        check.number("min_probability", self.min_probability, 1e-9, 1.0)


@final
class SendProbability:
    """Raise a probability q by accepts, lower it by rejections.

    With ρ = (K − 1) / K, the gap g since the last answer, and the answer's weight w:

        accept     run += w;  q ← min(1, q · exp(w · 0.25 · ρ · min(16, 1 + max(0, run − 10) / 3)))
        rejection  run ← 0;   q ← max(q_min, q · exp(−w · 0.25 · (1 − ρ) · clamp(g / 0.1 s, 1, 8)))

    Rises and falls balance at (1 − ρ) / ρ = 1 / (K − 1) accepts per rejection: K requests per
    accept, as in the book's equation.

    The weight w is the moving average of min(1, g / 0.1 s).  For a client task with up to ten
    answers a second it is 1.  Beyond that it holds the pace of the controller in *time*: at most
    0.25 / 0.1 s = 2.5 per second in log q, however many answers there are.  An answer is late by a
    round trip, and all that were on their way when q fell say the same once more: without the
    weight, 1,000 a second that are 50 ms late drive q to its floor and goodput to 15 %.
    A loop of gain 2.5 / K per second is stable up to a delay of (π / 2) / 2.3 s⁻¹ = 0.7 s.
    """

    __slots__ = (
        "_answered_at",
        "_config",
        "_fall",
        "_rise",
        "_run",
        "_weight",
        "_whole_growth",
        "value",
    )

    def __init__(self, config: SendProbabilityConfig, now: float) -> None:
        self._config = config
        rho = (config.accepts_multiplier - 1.0) / config.accepts_multiplier
        self._rise = config.step * rho
        self._fall = config.step * (1.0 - rho)
        self._whole_growth = -math.log(config.min_probability)
        self._answered_at = now
        self._weight = 1.0
        self._run = 0.0
        self.value = 1.0
        """q.  A plain attribute because it is read once per request; only this class sets it."""

    def accept(self, now: float) -> None:
        """Learn that a request was accepted."""
        weight = self._weigh((now - self._answered_at) / self._config.gap_seconds, now)
        self._run += weight
        if self.value < 1.0:
            config = self._config
            factor = 1.0
            if self._run > config.run_free:
                factor += (self._run - config.run_free) / config.run_scale
                if factor > config.run_max_factor:
                    factor = config.run_max_factor
            self._raise(self._rise * weight * factor)

    def reject(self, now: float) -> None:
        """Learn that a request was rejected."""
        config = self._config
        factor = (now - self._answered_at) / config.gap_seconds
        weight = self._weigh(factor, now)
        if factor < 1.0:
            factor = 1.0
        elif factor > config.gap_max_factor:
            factor = config.gap_max_factor
        lowered = self.value * math.exp(-self._fall * weight * factor)
        self.value = lowered if lowered > config.min_probability else config.min_probability
        self._run = 0.0

    def relax(self) -> None:
        """Hold nothing against requests any more: what was heard is too old."""
        self.value = 1.0
        self._run = 0.0

    def _weigh(self, gap: float, now: float) -> float:
        if gap > 1.0:
            gap = 1.0
        elif gap < 0.0:  # The clock went back.
            gap = 0.0
        if now > self._answered_at:
            self._answered_at = now
        # Averaged, because single gaps would favour accepts: after a longer gap a backend is more
        # likely to have room.
        self._weight += self._config.gap_smoothing_ratio * (gap - self._weight)
        return self._weight

    def _raise(self, growth: float) -> None:
        # What lifts the floor to 1 lifts anything; and exp() must not overflow after days of peace.
        if growth >= self._whole_growth:
            self.value = 1.0
            return
        raised = self.value * math.exp(growth)
        self.value = raised if raised < 1.0 else 1.0
