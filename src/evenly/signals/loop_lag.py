"""Measure how long a request that arrives now would wait for the event loop.

SRE book, chapter 21, "Utilization Signals": the executor load average counts what is "currently
running or ready to run and waiting for a free processor".  An event loop does not say how many
requests wait in it, but it can be timed:

    runnable = requests admitted and not yet started + lag / mean cost

A request is read from its socket in one turn of the loop and its task takes the first step in the
next.  The probe does the same: a timer, then `call_soon`.

    lag = max(0, late by − timer_seconds) + wait in the ready queue

The timer's own part counts only beyond the resolution of timers: selectors round a sleep up to
whole milliseconds, which is not a queue.  The ready queue is timed exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from typing import final

from evenly.core import check

__all__ = ["LoopLag", "runnable"]


def runnable(
    not_started: int,
    lag_seconds: float,
    mean_cost_seconds: float,
    *,
    active_requests: int | None = None,
) -> float:
    """Return how many requests run or wait for the CPU.

    Without a mean cost yet (0) the lag cannot be turned into requests and is left out.  No more can
    be runnable than are active: one handler that blocks the loop for a second is one request.
    """
    waiting = float(not_started)
    if mean_cost_seconds > 0.0:
        waiting += lag_seconds / mean_cost_seconds
    if active_requests is not None and waiting > active_requests:
        return float(active_requests)
    return waiting


@final
class LoopLag:
    """Time the event loop every `interval_seconds`, with jitter, between `start` and `stop`.

    `on_sample` is told each lag as it is measured; that is the moment to record the signal.  Use it
    on the loop's own thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        rng: random.Random,
        interval_seconds: float = 0.01,  # ten samples in the signal's decay of 0.1 s
        jitter_ratio: float = 0.2,
        timer_seconds: float = 0.001,
        on_sample: Callable[[float], None] | None = None,
    ) -> None:
        check.number("interval_seconds", interval_seconds, 0.001, 60.0)
        check.fraction("jitter_ratio", jitter_ratio)
        check.number("timer_seconds", timer_seconds, 0.0, 1.0)
        self._loop = loop
        self._rng = rng
        self._interval_seconds = interval_seconds
        self._jitter_ratio = jitter_ratio
        self._timer_seconds = timer_seconds
        self._on_sample = on_sample
        self._handle: asyncio.Handle | None = None
        # The instant from which waiting counts: when the timer is due plus its resolution, and then
        # when the ready queue was joined.
        self._waiting_since = 0.0
        self._late_seconds = 0.0
        self._lag_seconds = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the loop is being timed."""
        return self._handle is not None

    def lag_seconds(self) -> float:
        """Return the latest lag; or what the probe under way has waited already, if that is more.

        So a backlog shows at once, also before the probe behind it has run.
        """
        if self._handle is None:
            return 0.0
        waited = self._late_seconds + self._loop.time() - self._waiting_since
        return waited if waited > self._lag_seconds else self._lag_seconds

    def start(self) -> None:
        """Begin; a second time does nothing."""
        if self._handle is None:
            self._schedule()

    def stop(self) -> None:
        """End, and leave nothing behind in the loop; a second time does nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._late_seconds = self._lag_seconds = 0.0

    def _schedule(self) -> None:
        jitter = self._rng.uniform(-self._jitter_ratio, self._jitter_ratio)
        due_at = self._loop.time() + self._interval_seconds * (1.0 + jitter)
        self._waiting_since = due_at + self._timer_seconds
        self._late_seconds = 0.0
        # In an empty context: the one that is current may belong to a request.
        self._handle = self._loop.call_at(due_at, self._timer_ran, context=Context())

    def _timer_ran(self) -> None:
        now = self._loop.time()
        self._late_seconds = max(0.0, now - self._waiting_since)
        self._waiting_since = now
        self._handle = self._loop.call_soon(self._turn_came, context=Context())

    def _turn_came(self) -> None:
        lag_seconds = self._late_seconds + max(0.0, self._loop.time() - self._waiting_since)
        self._lag_seconds = lag_seconds
        self._schedule()  # First, so that a callback that raises does not end the timing.
        if self._on_sample is not None:
            self._on_sample(lag_seconds)
