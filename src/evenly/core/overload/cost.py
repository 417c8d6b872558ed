"""Turn measured CPU seconds into what requests cost.

SRE book, chapter 21, "The Pitfalls of 'Queries per Second'": cost is "a normalized measure of how
much CPU time it has consumed (over different CPU architectures, with consideration of performance
differences)".  With n requests settled in a period, and the handlers' CPU h_1 … h_n,

    cost_i = (h_i + each + ratio · h_i) · compute_units     both out of the pool, while it lasts
    pool   ← pool + process CPU of the period − Σ h_i       at the end of a period, and then
    pool   ← min(pool, n · serving_seconds + Σ h_i)         the rest is nobody's: background
    each   = min(pool / n, serving_seconds)                 in the period that follows
    ratio  = (pool − n · each) / Σ h_i                      at most 1, because of the line before

To serve a request (parsing, the event loop) costs about the same for each, and so the first
`serving_seconds` of each are shared alike.  What is beyond them came of the handlers (garbage
collection, callbacks), or of a thread that no request knows of.  So it is shared in proportion to
the handlers' CPU, and no request pays more of it than its handler used.

Both are charged a period late; and as what is charged leaves the pool, the errors of one period are
made up in the next:  Σ cost / compute_units + pool + background = process CPU  at the end of any.

A period without a request is background as a whole: nobody is there to pay for it, and the first
request after a quiet night must not.  A request that had been running through such periods takes
its part back when it settles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from evenly.core import check

__all__ = ["COST_MOST_SECONDS", "CostConfig", "CostKeeper", "CostSnapshot"]

COST_MOST_SECONDS: Final = 1e12
"""Thirty thousand years of one CPU: more is no measurement."""
_SERVING_MOST_SECONDS: Final = 1e3
_NUMBERS = (int, float)  # Not `int | float`, which would be made anew for each request.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CostConfig:
    """Set the speed of this machine's CPUs and how often the overhead is computed."""

    compute_units: float = 1.0
    """Speed of one CPU here, in normalised CPUs (the book's GCU)."""
    period_seconds: float = 1.0
    """Shorter: the overhead follows changes sooner, from fewer requests."""
    serving_seconds: float = 0.001
    """CPU that serving a request may take besides its handler, however cheap that is."""

    def __post_init__(self) -> None:
        check.number("compute_units", self.compute_units, 1e-3, 1e3)
        check.positive("period_seconds", self.period_seconds)
        check.number("serving_seconds", self.serving_seconds, 0.0, _SERVING_MOST_SECONDS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CostSnapshot:
    """Show where the process's CPU went, in seconds of this machine's CPUs."""

    overhead_seconds: float
    """What each request pays for besides its handler, now."""
    overhead_ratio: float
    """What it pays besides that, as a part of its handler's CPU: 0 to 1."""
    pool_seconds: float
    """Used and not yet charged; negative where handlers were charged before the process clock."""
    background_seconds: float
    """Used, and nobody's: more than requests pay for, or while none was there to pay."""
    ignored: int
    """Readings that were not finite, negative, or lower than the one before."""


@final
class CostKeeper:
    """Spread the process's CPU over its requests.

    A cost is never negative, nor more than twice the handler's CPU and `serving_seconds`.
    """

    __slots__ = (
        "_background_seconds",
        "_compute_units",
        "_handlers_seconds",
        "_ignored",
        "_overhead_ratio",
        "_overhead_seconds",
        "_period_began_at",
        "_period_seconds",
        "_pool_seconds",
        "_process_seconds",
        "_serving_seconds",
        "_settled",
        "unpaid_seconds",
    )

    def __init__(self, config: CostConfig) -> None:
        self._compute_units = config.compute_units
        self._period_seconds = config.period_seconds
        self._serving_seconds = config.serving_seconds
        self._period_began_at = 0.0
        self._process_seconds: float | None = None  # at the end of the last period
        self._handlers_seconds = 0.0
        self._settled = 0
        self._overhead_seconds = 0.0
        self._overhead_ratio = 0.0
        self._pool_seconds = 0.0
        self._background_seconds = 0.0
        self._ignored = 0
        self.unpaid_seconds = 0.0
        """What the process used for each request of the last period that none of them pays for.

        For whoever asks how long a queue takes: a handler's threads may work where no meter sees
        them, and there it is worse to think a queue too short than to think it too long.
        """

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
        overhead = count * self._overhead_seconds + self._overhead_ratio * handlers_cpu_seconds
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
            self._background_seconds += remaining
        else:
            self._share(self._pool_seconds + remaining)
        self._begin_period(cpu_seconds_total, now)

    def snapshot(self) -> CostSnapshot:
        """Return where the process's CPU went."""
        return CostSnapshot(
            overhead_seconds=self._overhead_seconds,
            overhead_ratio=self._overhead_ratio,
            pool_seconds=self._pool_seconds,
            background_seconds=self._background_seconds,
            ignored=self._ignored,
        )

    def _share(self, pool_seconds: float) -> None:
        """Say what requests pay of the pool in the period that begins, and what is nobody's."""
        alike = self._settled * self._serving_seconds
        if pool_seconds < 0.0:  # Handlers were charged after the process, or before.
            beyond = -min(self._background_seconds, -pool_seconds)
        else:
            beyond = max(0.0, pool_seconds - alike - self._handlers_seconds)
        self.unpaid_seconds = max(0.0, beyond / self._settled)
        self._background_seconds += beyond
        self._pool_seconds = pool_seconds = pool_seconds - beyond
        shared = min(max(pool_seconds, 0.0), alike)
        rest = pool_seconds - shared
        self._overhead_seconds = shared / self._settled
        has_rest = rest > 0.0 and self._handlers_seconds > 0.0
        self._overhead_ratio = min(rest / self._handlers_seconds, 1.0) if has_rest else 0.0

    def _begin_period(self, cpu_seconds_total: float, now: float) -> None:
        self._process_seconds = cpu_seconds_total
        self._period_began_at = now
        self._handlers_seconds = 0.0
        self._settled = 0
