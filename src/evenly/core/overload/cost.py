"""Turn measured CPU seconds into what requests cost.

SRE book, chapter 21, "The Pitfalls of 'Queries per Second'": cost is "a normalized measure of how
much CPU time it has consumed (over different CPU architectures, with consideration of performance
differences)".  With n requests settled in a period, and the handlers' CPU h_1 … h_n,

    cost_i = (h_i + overhead) · compute_units
    pool   ← pool + process CPU of the period − Σ h_i            at the end of a period
    overhead = pool / n      taken out of the pool by each request of the next, while it lasts

The process's CPU outside of handlers (parsing, the event loop, garbage collection) is thus spread
over requests a period late; and as what is charged leaves the pool, the errors of one period are
made up in the next:  Σ cost / compute_units + pool + idle = process CPU  at the end of any period.

`idle` is the CPU of periods without a request: nobody is there to pay for it, and the first request
after a quiet night must not.  A request that had been running through such periods takes its part
back when it settles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from evenly.core import check

__all__ = ["COST_MOST_SECONDS", "CostConfig", "CostKeeper", "CostSnapshot"]

COST_MOST_SECONDS: Final = 1e12
"""Thirty thousand years of one CPU: more is no measurement."""
_NUMBERS = (int, float)  # Not `int | float`, which would be made anew for each request.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CostConfig:
    """Set the speed of this machine's CPUs and how often the overhead is computed."""

    compute_units: float = 1.0
    """Speed of one CPU here, in normalised CPUs (the book's GCU)."""
    period_seconds: float = 1.0
    """Shorter: the overhead follows changes sooner, from fewer requests."""

    def __post_init__(self) -> None:
        check.number("compute_units", self.compute_units, 1e-3, 1e3)
        check.positive("period_seconds", self.period_seconds)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CostSnapshot:
    """Show where the process's CPU went, in seconds of this machine's CPUs."""

    overhead_seconds: float
    """What a request pays for besides its handler, now."""
    pool_seconds: float
    """Used and not yet charged; negative where handlers were charged before the process clock."""
    idle_seconds: float
    """Used while no request was there to pay."""
    ignored: int
    """Readings that were not finite, negative, or lower than the one before."""


@final
class CostKeeper:
    """Spread the process's CPU over its requests.  Costs are never negative."""

    __slots__ = (
        "_compute_units",
        "_handlers_seconds",
        "_idle_seconds",
        "_ignored",
        "_overhead_seconds",
        "_period_began_at",
        "_period_seconds",
        "_pool_seconds",
        "_process_seconds",
        "_settled",
    )

    def __init__(self, config: CostConfig) -> None:
        self._compute_units = config.compute_units
        self._period_seconds = config.period_seconds
        self._period_began_at = 0.0
        self._process_seconds: float | None = None  # at the end of the last period
        self._handlers_seconds = 0.0
        self._settled = 0
        self._overhead_seconds = 0.0
        self._pool_seconds = 0.0
        self._idle_seconds = 0.0
        self._ignored = 0

    def settle(self, handlers_cpu_seconds: float, count: int = 1) -> float:
        """Return the cost of so many requests whose handlers used this; wrong values count as 0."""
        if not (
            isinstance(handlers_cpu_seconds, _NUMBERS)
            and 0.0 <= handlers_cpu_seconds <= COST_MOST_SECONDS
        ):
            self._ignored += 1
            handlers_cpu_seconds = 0.0
        self._settled += count
        self._handlers_seconds += handlers_cpu_seconds
        overhead = count * self._overhead_seconds
        if overhead > self._pool_seconds:
            overhead = self._pool_seconds if self._pool_seconds > 0.0 else 0.0
        self._pool_seconds -= overhead
        return (handlers_cpu_seconds + overhead) * self._compute_units

    def record_process(self, cpu_seconds_total: float, now: float) -> None:
        """Take the reading of the process's CPU clock; it ends a period if that has lasted."""
        if not (
            isinstance(cpu_seconds_total, _NUMBERS)
            and 0.0 <= cpu_seconds_total <= COST_MOST_SECONDS
        ):
            self._ignored += 1
            return
        last = self._process_seconds
        if last is None or cpu_seconds_total < last:
            # What was used before the first reading, or lost with a clock that stepped back, is
            # unknown: begin again from here, with nothing settled against it.
            self._ignored += last is not None
            self._begin_period(cpu_seconds_total, now)
            return
        # A `now` that stepped back ends the period too, or it might last for hours.
        if 0.0 <= now - self._period_began_at < self._period_seconds:
            return
        remaining = cpu_seconds_total - last - self._handlers_seconds
        if self._settled == 0:
            self._idle_seconds += remaining
        else:
            self._pool_seconds += remaining
            if self._pool_seconds < 0.0:
                back = min(self._idle_seconds, -self._pool_seconds)
                self._idle_seconds -= back
                self._pool_seconds += back
            self._overhead_seconds = max(0.0, self._pool_seconds / self._settled)
        self._begin_period(cpu_seconds_total, now)

    def snapshot(self) -> CostSnapshot:
        """Return where the process's CPU went."""
        return CostSnapshot(
            overhead_seconds=self._overhead_seconds,
            pool_seconds=self._pool_seconds,
            idle_seconds=self._idle_seconds,
            ignored=self._ignored,
        )

    def _begin_period(self, cpu_seconds_total: float, now: float) -> None:
        self._process_seconds = cpu_seconds_total
        self._period_began_at = now
        self._handlers_seconds = 0.0
        self._settled = 0
