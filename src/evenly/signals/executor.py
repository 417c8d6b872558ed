"""Measure the load of a threaded backend: its executor, and how late its threads wake up.

SRE book, chapter 21, "Utilization Signals": count the threads that are "currently running or ready
to run and waiting for a free processor".  Of the executor's threads, some wait for I/O, and Python
does not say which.  So there are two readings: the executor's queue, which grows when all threads
are busy for whatever reason, and the wake-up delay of a thread that does nothing but sleep, which
grows when threads wait for the interpreter lock or for a CPU.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, final

from evenly.context import ContextThreadPoolExecutor
from evenly.core import check
from evenly.core.clock import Clock

__all__ = ["CountedThreadPoolExecutor", "ExecutorLoad", "WakeUpDelay"]

P = ParamSpec("P")
R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLoad:
    """Say what an executor is doing."""

    busy_threads: int
    queued: int
    """Pieces of work that no thread has begun."""


class CountedThreadPoolExecutor(ContextThreadPoolExecutor):
    """Be a `ThreadPoolExecutor` that knows its load, and runs work in its submitter's context.

    The standard one cannot tell: its count of idle threads drifts while work is queued.  Give it to
    `grpc.server`, or make it an event loop's default executor.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(max_workers, thread_name_prefix, initializer)
        self._counts_lock = threading.Lock()
        self._busy = 0
        self._unfinished = 0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule `fn`, and count it until it has ended or was cancelled."""
        with self._counts_lock:
            self._unfinished += 1
        try:
            future = super().submit(self._count(fn), *args, **kwargs)
        except RuntimeError:  # shut down
            self._ended(None)
            raise
        future.add_done_callback(self._ended)
        return future

    def load(self) -> ExecutorLoad:
        """Return what the executor is doing now."""
        with self._counts_lock:
            queued = self._unfinished - self._busy
            return ExecutorLoad(busy_threads=self._busy, queued=max(0, queued))

    def _count(self, fn: Callable[P, R]) -> Callable[P, R]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._counts_lock:
                self._busy += 1
            try:
                return fn(*args, **kwargs)
            finally:
                with self._counts_lock:
                    self._busy -= 1
                    self._unfinished -= 1

        return counted

    def _ended(self, future: Future[R] | None) -> None:
        # What ran has been counted down where it ran, before anyone could see its result.
        if future is None or future.cancelled():
            with self._counts_lock:
                self._unfinished -= 1


@final
class WakeUpDelay:
    """Sleep in a thread of its own, and measure how late it wakes, between `start` and `stop`.

    `on_sample` is called in that thread; a façade needs its lock there.  `wait` sleeps for so many
    seconds, and returns True when it is time to stop; tests pass their own.
    """

    def __init__(
        self,
        *,
        rng: random.Random,
        interval_seconds: float = 0.01,  # ten samples in the signal's decay of 0.1 s
        jitter_ratio: float = 0.2,
        on_sample: Callable[[float], None] | None = None,
        clock: Clock = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        check.number("interval_seconds", interval_seconds, 0.001, 60.0)
        check.fraction("jitter_ratio", jitter_ratio)
        self._rng = rng
        self._interval_seconds = interval_seconds
        self._jitter_ratio = jitter_ratio
        self._on_sample = on_sample
        self._clock = clock
        self._stopping = threading.Event()
        self._wait = self._stopping.wait if wait is None else wait
        self._thread: threading.Thread | None = None
        self._due_at: float | None = None
        self._delay_seconds = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def delay_seconds(self) -> float:
        """Return the latest delay; or what the present one has reached already, if that is more."""
        due_at = self._due_at
        if due_at is None:
            return 0.0
        late = self._clock() - due_at
        return late if late > self._delay_seconds else self._delay_seconds

    def start(self) -> None:
        """Begin; while it runs, a second time does nothing."""
        if not self.is_running:
            self._stopping.clear()
            # A daemon, so that a forgotten `stop` does not keep the process alive.
            self._thread = threading.Thread(target=self._run, name="evenly-wake-up", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread to be gone; a second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    def _run(self) -> None:
        try:
            while True:
                jitter = self._rng.uniform(-self._jitter_ratio, self._jitter_ratio)
                seconds = self._interval_seconds * (1.0 + jitter)
                self._due_at = due_at = self._clock() + seconds
                if self._wait(seconds):
                    return
                self._delay_seconds = max(0.0, self._clock() - due_at)
                if self._on_sample is not None:
                    self._on_sample(self._delay_seconds)
        finally:
            self._due_at = None
            self._delay_seconds = 0.0
