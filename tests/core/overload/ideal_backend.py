"""Backends that serve exactly C requests a second, and clients against them."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.level import draw_luck
from evenly.core.overload.throttle import Throttle
from evenly.core.request import Outcome, Request
from evenly.core.window import TokenBucket
from evenly.testing import ManualClock

CRITICAL = Criticality.CRITICAL


@final
class IdealBackend:
    """Accept `per_second` requests a second, saving up to `seconds` of them; reject at no cost.

    It saves some because a count of what it accepts "per second" needs a stretch to count over:
    random arrivals at 1.1 times the capacity of a backend that saves nothing find it idle now and
    then, and it accepts less than its capacity.  It reports nothing.
    """

    def __init__(self, per_second: float, *, seconds: float = 1.0) -> None:
        self._room = TokenBucket(per_second, max(1.0, per_second * seconds))

    def serve(self, now: float) -> Outcome:
        return Outcome.OK if self._room.take(now) else Outcome.OVERLOADED


@final
class CuttingBackend:
    """Be a backend task of one core that serves one after another, and reports where it cuts."""

    def __init__(self, per_second: float, *, clock: ManualClock, seed: int = 1) -> None:
        self.clock = clock
        self.task = BackendTask(
            BackendTaskConfig(), clock=clock, rng=random.Random(seed), boot=seed
        )
        self._seconds = 1.0 / per_second
        self._queue: deque[tuple[float, Admission]] = deque()
        self._busy_until = clock()

    def serve(self, luck: float, line: float = 0.0) -> tuple[Outcome, float]:
        """Return how a CRITICAL request ends that arrives now, and when."""
        now = self.clock()
        answer = self.task.admit(Request(luck=luck), line=line)
        if not isinstance(answer, Admission):
            return answer.outcome, now
        self._busy_until = max(now, self._busy_until) + self._seconds
        self._queue.append((self._busy_until, answer))
        self.task.record_signal("runnable", len(self._queue))
        return Outcome.OK, self._busy_until

    def cut(self) -> float:
        return self.task.report().cut

    @property
    def ends_at(self) -> float:
        """When the one that is served now will have been."""
        return self._queue[0][0] if self._queue else math.inf

    def end(self) -> None:
        """End it."""
        self._queue.popleft()[1].finish(Outcome.OK, self._seconds)
        self.task.record_signal("runnable", len(self._queue))


def let_pass(seconds: float, backends: Sequence[CuttingBackend], clock: ManualClock) -> None:
    """Let time pass in which backends serve."""
    until = clock() + seconds
    while backends:
        first = min(backends, key=lambda backend: backend.ends_at)
        if first.ends_at > until:
            break
        clock.advance(max(0.0, first.ends_at - clock()))
        first.end()
    clock.advance(max(0.0, until - clock()))


@dataclass(kw_only=True)
class Tally:
    requests: int = 0
    sent: int = 0
    accepted: int = 0

    @property
    def sent_ratio(self) -> float:
        return self.sent / self.requests


def offer(
    throttle: Throttle,
    backend: IdealBackend | CuttingBackend,
    *,
    clock: ManualClock,
    rng: random.Random,
    per_second: float,
    seconds: float,
    answer_seconds: float = 0.0,
) -> Tally:
    """Send Poisson arrivals through a throttle; each answer takes `answer_seconds`."""
    tally = Tally()
    ends: list[tuple[float, int, Outcome, float | None]] = []
    stop_at = clock() + seconds
    while True:
        cutting = [backend] if isinstance(backend, CuttingBackend) else []
        let_pass(rng.expovariate(per_second), cutting, clock)
        now = clock()
        is_over = now >= stop_at
        while ends and (is_over or ends[0][0] <= now):
            end_at, _, outcome, cut = heapq.heappop(ends)
            if cut is not None:
                throttle.record_report(cut, end_at)
            throttle.record(CRITICAL, "", outcome, end_at)
        if is_over:
            return tally
        tally.requests += 1
        luck = draw_luck(rng) if cutting else 0.0
        if throttle.admit(CRITICAL + luck, "", now):
            said: float | None = None
            end_at = now
            if isinstance(backend, CuttingBackend):
                outcome, end_at = backend.serve(luck, throttle.line(now))
                said = backend.cut()
            else:
                outcome = backend.serve(now)
            tally.sent += 1
            tally.accepted += outcome is Outcome.OK
            heapq.heappush(ends, (end_at + answer_seconds, tally.sent, outcome, said))
