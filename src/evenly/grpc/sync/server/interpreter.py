"""Tell how much of the one core that a Python process has is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

__all__ = ["InterpreterClock"]


@final
class InterpreterClock:
    """Estimate for how long the interpreter was busy: the CPU of all threads, at most all the time.

    Threads take turns in the interpreter, so a process whose threads use one core is full, however
    many cores there are beside it.  What they use beyond, in libraries, is no matter of its lock.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._at = clock()
        self._cpu_seconds = cpu_clock()
        self._busy_seconds = 0.0

    def __call__(self) -> float:
        """Return the busy seconds so far."""
        now = self._clock()
        cpu_seconds = self._cpu_clock()
        self._busy_seconds += max(0.0, min(now - self._at, cpu_seconds - self._cpu_seconds))
        self._at = now
        self._cpu_seconds = cpu_seconds
        return self._busy_seconds
