from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

import pytest

from evenly.context import current_request, request_context
from evenly.core.request import Request
from evenly.errors import ConfigError
from evenly.signals.loop_lag import LoopLag, runnable

NO_JITTER = 0.0


class FakeHandle:
    def __init__(self, callback: Callable[[], object], context: Context) -> None:
        self.callback = callback
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """An event loop whose callbacks run, and whose time passes, when it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ready: deque[FakeHandle] = deque()
        self.timers: list[tuple[float, int, FakeHandle]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object], *, context: Context) -> FakeHandle:
        self.ready.append(FakeHandle(callback, context))
        return self.ready[-1]

    def call_at(
        self, when: float, callback: Callable[[], object], *, context: Context
    ) -> FakeHandle:
        handle = FakeHandle(callback, context)
        heapq.heappush(self.timers, (when, len(self.timers), handle))
        return handle

    def turn(self) -> None:
        """Run what is ready, after the timers that are due."""
        while self.timers and self.timers[0][0] <= self.now:
            self.ready.append(heapq.heappop(self.timers)[2])
        for _ in range(len(self.ready)):
            handle = self.ready.popleft()
            if not handle.is_cancelled:
                handle.context.run(handle.callback)

    def due_at(self) -> float:
        return self.timers[0][0]


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


def as_loop(loop: FakeLoop) -> asyncio.AbstractEventLoop:
    return cast("asyncio.AbstractEventLoop", loop)  # It has the three methods that are used.


def make(loop: FakeLoop, samples: list[float], jitter_ratio: float = NO_JITTER) -> LoopLag:
    return LoopLag(
        as_loop(loop), rng=random.Random(1), jitter_ratio=jitter_ratio, on_sample=samples.append
    )


@pytest.mark.parametrize(
    ("late", "queue", "expected"),
    [
        pytest.param(0.0, 0.0, 0.0, id="idle"),
        pytest.param(0.0008, 0.0, 0.0, id="a timer's rounding is no queue"),
        pytest.param(0.0, 0.0003, 0.0003, id="the ready queue is timed exactly"),
        pytest.param(0.021, 0.0, 0.020, id="late beyond the resolution"),
        pytest.param(0.021, 0.005, 0.025, id="both"),
    ],
)
def test_lag_is_lateness_beyond_the_timers_resolution_plus_the_ready_queue(
    loop: FakeLoop, late: float, queue: float, expected: float
) -> None:
    samples: list[float] = []
    lag = make(loop, samples)
    lag.start()

    loop.now = loop.due_at() + late
    loop.turn()
    loop.now += queue
    loop.turn()

    assert samples == [pytest.approx(expected)]
    assert lag.lag_seconds() == pytest.approx(expected)


def test_a_backlog_shows_before_the_probe_behind_it_has_run(loop: FakeLoop) -> None:
    lag = make(loop, [])
    lag.start()

    loop.now = loop.due_at() + 0.001 + 0.030  # The timer is due, and has not run.
    assert lag.lag_seconds() == pytest.approx(0.030)
    loop.turn()
    loop.now += 0.004  # It has, and waits in the ready queue.
    assert lag.lag_seconds() == pytest.approx(0.034)
    loop.turn()
    assert lag.lag_seconds() == pytest.approx(0.034)


def test_it_samples_every_interval_with_jitter(loop: FakeLoop) -> None:
    samples: list[float] = []
    lag = make(loop, samples, jitter_ratio=0.2)
    lag.start()
    pauses = []

    for _ in range(200):
        pauses.append(loop.due_at() - loop.now)
        loop.now = loop.due_at()
        loop.turn()
        loop.turn()

    assert samples == [0.0] * 200
    assert 0.008 <= min(pauses) < 0.0085  # 200 draws from 10 ms ± 20 %: none in a given eighth
    assert 0.0115 < max(pauses) <= 0.012  # of the range has a chance of (7/8)^200 = 2.5e-12


def test_starting_and_stopping_twice_leaves_nothing_behind(loop: FakeLoop) -> None:
    samples: list[float] = []
    lag = make(loop, samples)
    assert not lag.is_running
    assert lag.lag_seconds() == 0.0

    lag.start()
    lag.start()
    assert len(loop.timers) == 1
    loop.now += 1.0
    lag.stop()
    lag.stop()
    loop.turn()
    loop.turn()

    assert samples == []
    assert lag.lag_seconds() == 0.0
    assert not lag.is_running
    assert not loop.timers
    assert not loop.ready


def test_it_can_stop_while_it_waits_in_the_ready_queue(loop: FakeLoop) -> None:
    samples: list[float] = []
    lag = make(loop, samples)
    lag.start()
    loop.now = loop.due_at()
    loop.turn()
    lag.stop()
    loop.turn()

    assert samples == []
    assert not loop.timers


def test_it_runs_in_no_requests_context(loop: FakeLoop) -> None:
    seen: list[Request] = []
    lag = LoopLag(
        as_loop(loop), rng=random.Random(1), on_sample=lambda _: seen.append(current_request())
    )
    with request_context(customer="indexer"):
        lag.start()
    loop.now = loop.due_at()
    loop.turn()
    loop.turn()

    assert seen == [Request()]


async def test_a_real_loop_that_is_blocked_lags_at_least_as_long() -> None:
    loop = asyncio.get_running_loop()
    samples: asyncio.Queue[float] = asyncio.Queue()
    lag = LoopLag(loop, rng=random.Random(1), on_sample=samples.put_nowait)
    lag.start()
    await samples.get()
    # Not a bet on the machine's speed: from the last time at which the probe can have been due,
    # 12 ms from now, the loop is blocked for another 20 ms, and the timer's resolution is 1 ms.
    ends_at = loop.time() + 0.012 + 0.020
    while loop.time() < ends_at:
        pass

    assert lag.lag_seconds() >= 0.018
    assert await samples.get() >= 0.018
    lag.stop()


@pytest.mark.parametrize(
    ("not_started", "lag", "cost", "active", "expected"),
    [
        pytest.param(0, 0.0, 0.002, 5, 0.0, id="idle"),
        pytest.param(3, 0.0, 0.002, 5, 3.0, id="not started"),
        pytest.param(1, 0.008, 0.002, 50, 5.0, id="1 and 8 ms of 2 ms each"),
        pytest.param(1, 0.008, 0.002, None, 5.0, id="without a bound"),
        pytest.param(1, 1.0, 0.002, 7, 7.0, id="never more than are active"),
        pytest.param(2, 1.0, 0.0, 7, 2.0, id="no mean cost yet"),
    ],
)
def test_runnable(
    not_started: int, lag: float, cost: float, active: int | None, expected: float
) -> None:
    assert runnable(not_started, lag, cost, active_requests=active) == pytest.approx(expected)


@pytest.mark.parametrize("field", ["interval_seconds", "jitter_ratio", "timer_seconds"])
def test_wrong_values_are_refused(loop: FakeLoop, field: str) -> None:
    wrong: dict[str, Any] = {field: float("nan")}
    with pytest.raises(ConfigError, match=f"{field} must be in"):
        LoopLag(as_loop(loop), rng=random.Random(1), **wrong)
