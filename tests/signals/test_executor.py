from __future__ import annotations

import random
import threading

import pytest

from evenly.context import current_request, request_context
from evenly.errors import ConfigError
from evenly.signals.executor import CountedThreadPoolExecutor, ExecutorLoad, WakeUpDelay
from evenly.testing import ManualClock

PATIENCE_SECONDS = 60.0  # Only a broken test waits so long.


def load(busy_threads: int, queued: int) -> ExecutorLoad:
    return ExecutorLoad(busy_threads=busy_threads, queued=queued)


class Gate:
    """Work that reports its start and lasts until it is let go."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self) -> str:
        self.started.release()
        assert self.open.wait(PATIENCE_SECONDS)
        return "done"

    def wait_until_started(self, count: int) -> None:
        for _ in range(count):
            assert self.started.acquire(timeout=PATIENCE_SECONDS)


def test_busy_threads_and_the_queue_are_counted() -> None:
    gate = Gate()
    with CountedThreadPoolExecutor(2) as executor:
        assert executor.load() == load(0, 0)
        futures = [executor.submit(gate) for _ in range(5)]
        gate.wait_until_started(2)

        assert executor.load() == load(2, 3)

        gate.open.set()
        assert [future.result(PATIENCE_SECONDS) for future in futures] == ["done"] * 5
        assert executor.load() == load(0, 0)


def test_work_cancelled_in_the_queue_leaves_it() -> None:
    gate = Gate()
    with CountedThreadPoolExecutor(1) as executor:
        executor.submit(gate)
        gate.wait_until_started(1)
        queued = [executor.submit(gate) for _ in range(3)]
        assert queued[1].cancel()

        assert executor.load() == load(1, 2)

        gate.open.set()
    assert executor.load() == load(0, 0)


def test_work_that_fails_or_is_refused_is_not_counted_for_ever() -> None:
    executor = CountedThreadPoolExecutor(1)
    assert isinstance(executor.submit(divmod, 1, 0).exception(PATIENCE_SECONDS), ZeroDivisionError)
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit(int)

    assert executor.load() == load(0, 0)


def test_work_runs_in_its_submitters_context() -> None:
    with CountedThreadPoolExecutor(1) as executor, request_context(customer="indexer"):
        assert executor.submit(current_request).result(PATIENCE_SECONDS).customer == "indexer"


class FakeSleep:
    """Sleep by moving a manual clock, each time later than asked by the next of `delays`."""

    def __init__(self, clock: ManualClock, delays: list[float]) -> None:
        self.clock = clock
        self.delays = delays
        self.asked: list[float] = []

    def __call__(self, seconds: float) -> bool:
        if not self.delays:
            return True
        self.asked.append(seconds)
        self.clock.advance(seconds + self.delays.pop(0))
        return False


def test_the_delay_is_what_a_sleep_lasts_too_long() -> None:
    clock = ManualClock()
    sleep = FakeSleep(clock, [0.0, 0.004, 0.0])
    samples: list[float] = []
    ticker = WakeUpDelay(
        rng=random.Random(1), on_sample=samples.append, clock=clock, wait=sleep, jitter_ratio=0.2
    )
    ticker.start()
    ticker.stop()

    # The clock reads about 1,000 s, so a float's step is 1.1e-13 s.
    assert samples == pytest.approx([0.0, 0.004, 0.0], abs=1e-12)
    assert all(0.008 <= seconds <= 0.012 for seconds in sleep.asked)
    assert len(set(sleep.asked)) == 3


def test_a_sleep_that_lasts_shows_before_it_ends() -> None:
    clock = ManualClock()
    asleep, wake = threading.Event(), threading.Event()

    def sleep(seconds: float) -> bool:
        clock.advance(seconds + 0.050)
        asleep.set()
        return wake.wait(PATIENCE_SECONDS)

    ticker = WakeUpDelay(rng=random.Random(1), clock=clock, wait=sleep)
    assert ticker.delay_seconds() == 0.0
    ticker.start()
    assert asleep.wait(PATIENCE_SECONDS)

    assert ticker.delay_seconds() == pytest.approx(0.050)
    assert ticker.is_running
    wake.set()
    ticker.stop()
    assert ticker.delay_seconds() == 0.0


def test_the_real_thread_ticks_and_is_gone_after_stop() -> None:
    before = set(threading.enumerate())  # Of these, some may end.
    ticked = threading.Semaphore(0)
    samples: list[float] = []

    def on_sample(delay: float) -> None:
        samples.append(delay)
        ticked.release()

    ticker = WakeUpDelay(rng=random.Random(1), on_sample=on_sample)
    for _ in range(2):  # It can start again.
        ticker.start()
        ticker.start()
        assert len(set(threading.enumerate()) - before) == 1
        for _ in range(3):
            assert ticked.acquire(timeout=PATIENCE_SECONDS)
        ticker.stop()
        ticker.stop()
        assert not ticker.is_running
        assert set(threading.enumerate()) <= before

    assert len(samples) >= 6
    assert min(samples) >= 0.0


def test_a_wrong_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"interval_seconds must be in \[0.001, 60\], not 0"):
        WakeUpDelay(rng=random.Random(1), interval_seconds=0)


def test_a_ticker_whose_callback_raised_can_be_started_again() -> None:
    ended = threading.Event()

    def fail(_delay_seconds: float) -> None:
        ended.set()
        raise RuntimeError("a reader's mistake")

    before = threading.excepthook
    threading.excepthook = lambda _args: None  # The thread's own report is not the point here.
    try:
        ticker = WakeUpDelay(rng=random.Random(1), interval_seconds=0.001, on_sample=fail)
        ticker.start()
        assert ended.wait(10.0)
        ticker._thread.join(10.0)  # type: ignore[union-attr]  # It was started above.
        ended.clear()
        ticker.start()
        assert ended.wait(10.0)
        ticker.stop()
    finally:
        threading.excepthook = before
