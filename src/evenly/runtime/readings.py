"""Read the system at its intervals, and tell a `BackendTask` what was read.

Three readings: `cpu` five times a second, `memory` and the process's CPU clock once a second, and
`runnable` from the loop's lag fifty times a second while there are requests, and whenever somebody
asks, or the queue has grown or shrunk by a millisecond of work.

    runnable  = requests admitted and not begun + lag / mean cost,    at most the active requests
    mean cost = max(what handlers took lately, CPU of the loop's thread ÷ requests ended)

The second part of the mean is what an echo needs: its handler is 5 µs of the 200 that the loop
spends on the request, and a lag of 2 ms is ten of those and not four hundred.

    cpu       = max(CPU rate of the process ÷ cores, CPU rate of the loop's thread)

because a loop is full when its thread is, however many cores are idle beside it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final, final

from evenly.signals.cpu import CpuReader
from evenly.signals.loop_lag import LoopLag, runnable
from evenly.signals.memory import MemoryReader

__all__ = ["Readings"]

_INTERVAL_SECONDS: Final = 0.2
_SLOW_EVERY: Final = 5
# Five samples in the signal's decay of 0.1 s: a queue of requests is counted and needs no sample.
_LAG_INTERVAL_SECONDS: Final = 0.02
_JITTER_RATIO: Final = 0.1
# A queue that is longer or shorter by less work decides nothing: its target is 5 ms and more.
_NEWS_SECONDS: Final = 0.001
# Fewer in a second say little: what the loop does by itself would be put down to them.
_LEAST_ENDED: Final = 20


@final
class Readings:
    """Take readings between `start` and `stop`.

    `record` is told a signal's name and value, `record_process` the process's CPU clock.  `waiting`
    and `active` say how many requests are admitted and not begun, and how many not ended; `ended`
    counts those that have; `handler_seconds` is what their handlers took lately.  Use it on the
    loop's thread, except for `record_runnable`.
    """

    def __init__(
        self,
        *,
        signals: frozenset[str],
        record: Callable[[str, float], None],
        record_process: Callable[[float], None],
        waiting: Callable[[], int],
        active: Callable[[], int],
        ended: Callable[[], int],
        handler_seconds: Callable[[], float],
        rng: random.Random,
        thread_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._has_runnable = "runnable" in signals
        self._has_cpu = "cpu" in signals
        self._has_memory = "memory" in signals
        self._record = record
        self._record_process = record_process
        self._waiting = waiting
        self._active = active
        self._ended = ended
        self._handler_seconds = handler_seconds
        self._rng = rng
        self._thread_clock = thread_clock
        self._lag: LoopLag | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._cpu = CpuReader()
        self._memory = MemoryReader()
        self._read_at = 0.0
        self._thread_seconds = 0.0
        self._thread_seconds_before = 0.0  # ... of the last slow tick
        self._ended_before = 0
        self._loop_seconds = 0.0
        self._shown_runnable = -1.0
        self._shown_waiting = 0
        self.is_timing = False
        """Whether the loop is being timed; while nobody is active it need not be."""
        self.memory_utilization = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; a second time does nothing."""
        if self._loop is not None:
            return
        self._loop = loop
        self._thread = threading.get_ident()
        self._read_at = loop.time()
        self._thread_seconds = self._thread_seconds_before = self._thread_clock()
        self._record_process(time.process_time())
        self._read_memory()
        self._cpu.utilization()  # The first period begins here.
        if self._has_runnable:  # or the application records it
            self._lag = LoopLag(
                loop, rng=self._rng, interval_seconds=_LAG_INTERVAL_SECONDS, on_sample=self._sampled
            )
        self._schedule()

    def stop(self) -> None:
        """End, and leave nothing in the loop; a second time does nothing."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._lag is not None:
            self._lag.stop()
            self._lag = None
            self.is_timing = False

    def begun(self) -> None:
        """Time the loop, since there is a request again; from any thread."""
        if self._lag is None or self._loop is None:
            return
        self.is_timing = True
        try:
            if threading.get_ident() == self._thread:
                self._lag.start()
            else:
                self._loop.call_soon_threadsafe(self._lag.start)
        except RuntimeError:  # The loop is closed: whoever admits a request must not pay for that.
            self.is_timing = False

    def lag_seconds(self) -> float:
        """Return how long a request that arrives now would wait for the loop."""
        return 0.0 if self._lag is None else self._lag.lag_seconds()

    def mean_cost_seconds(self) -> float:
        """Return what a request takes of the loop's time; 0 is unknown."""
        return max(self._handler_seconds(), self._loop_seconds)

    def record_runnable(self, arriving: int = 0) -> None:
        """Record how many are runnable now, `arriving` ones included, unless that is known."""
        if not self._has_runnable:
            return
        value = 0.0
        self._shown_waiting = 0
        if self._active():  # or there is none, whatever the lag; this is the usual case
            value = self._runnable(arriving, self.lag_seconds())
        if value != self._shown_runnable:
            self._shown_runnable = value
            self._record("runnable", value)

    def record_waiting(self, arriving: int = 0) -> None:
        """Record how many are runnable if a millisecond's worth more or fewer wait, or none."""
        waiting = self._waiting() + arriving
        seconds = self.mean_cost_seconds()
        change_seconds = abs(waiting - self._shown_waiting) * seconds
        if not seconds or not waiting or change_seconds >= _NEWS_SECONDS:
            self.record_runnable(arriving)

    def _runnable(self, arriving: int, lag_seconds: float) -> float:
        self._shown_waiting = waiting = self._waiting() + arriving
        return runnable(
            waiting,
            lag_seconds,
            self.mean_cost_seconds(),
            active_requests=self._active(),
        )

    def _sampled(self, lag_seconds: float) -> None:
        if self._has_runnable:
            self._shown_runnable = self._runnable(0, lag_seconds)
            self._record("runnable", self._shown_runnable)
        if self.is_timing and not self._active() and self._lag is not None:
            self._lag.stop()
            self.is_timing = False

    def _schedule(self) -> None:
        if self._loop is not None:
            jitter = self._rng.uniform(-_JITTER_RATIO, _JITTER_RATIO)
            # In an empty context: the one that is current may belong to a request.
            self._timer = self._loop.call_later(
                _INTERVAL_SECONDS * (1.0 + jitter), self._tick, context=Context()
            )

    def _tick(self) -> None:
        self._schedule()  # First, so that a reading that raises does not end them all.
        self._ticks += 1
        self._read_cpu()
        if self._has_runnable and not self.is_timing:
            self._sampled(0.0)  # It stays known.
        if self._ticks % _SLOW_EVERY == 0:
            self._read_memory()
            self._record_process(time.process_time())
            self._read_loop_seconds()

    def _read_cpu(self) -> None:
        assert self._loop is not None  # noqa: S101  There are no ticks without one.
        now = self._loop.time()
        thread_seconds = self._thread_clock()
        passed_seconds = now - self._read_at
        used_seconds = thread_seconds - self._thread_seconds
        self._read_at = now
        self._thread_seconds = thread_seconds
        if self._has_cpu and passed_seconds > 0.0:
            self._record("cpu", max(self._cpu.utilization(), used_seconds / passed_seconds))

    def _read_memory(self) -> None:
        self.memory_utilization = self._memory.utilization()
        if self._has_memory:
            self._record("memory", self.memory_utilization)

    def _read_loop_seconds(self) -> None:
        ended = self._ended() - self._ended_before
        if ended >= _LEAST_ENDED:
            self._loop_seconds = (self._thread_seconds - self._thread_seconds_before) / ended
        self._ended_before += ended
        self._thread_seconds_before = self._thread_seconds
