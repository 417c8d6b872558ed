"""What metering adds to a coroutine: per request, and per await (bound: 3 µs plus 2 µs)."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from bench.timing import Case, Row, compare
from evenly.signals.cost_meter import CostMeter

PER_REQUEST_NANOSECONDS = 3000.0
PER_AWAIT_NANOSECONDS = 2000.0
_AWAITS = 10


def measure(rounds: int) -> list[Row]:
    """Take differences in the same round, so that a noisy moment hits both sides."""
    per_request: list[float] = []
    per_await: list[float] = []
    for _ in range(rounds):
        gc.collect()
        bare_short, bare_long = _nanoseconds(_bare, 0), _nanoseconds(_bare, _AWAITS)
        metered_short, metered_long = _nanoseconds(_metered, 0), _nanoseconds(_metered, _AWAITS)
        per_request.append(metered_short - bare_short)
        per_await.append(((metered_long - metered_short) - (bare_long - bare_short)) / _AWAITS)
    (clock,) = compare([Case(what="thread_time_ns", prepare=lambda: _read_clock)], rounds=rounds)
    empty = clock.nanoseconds / clock.ratio
    return [
        _row("meter adds per request", per_request, empty, PER_REQUEST_NANOSECONDS),
        _row("meter adds per await", per_await, empty, PER_AWAIT_NANOSECONDS),
        clock,
    ]


def _row(what: str, nanoseconds: list[float], empty: float, bound: float) -> Row:
    # The bound is in time, because two thirds of the price are system calls to read the CPU clock,
    # which do not scale with the interpreter; the table is in empty calls.
    median = statistics.median(nanoseconds)
    return Row(what=what, nanoseconds=median, ratio=median / empty, bound=bound / empty)


def _read_clock(count: int) -> None:
    read = time.thread_time_ns
    for _ in range(count):
        read()


@coroutine
def _suspend() -> Generator[None, None, None]:
    yield


async def _handler(awaits: int) -> None:
    for _ in range(awaits):
        await _suspend()


async def _bare(awaits: int) -> None:
    await _handler(awaits)


async def _metered(awaits: int) -> None:
    meter = CostMeter()
    await meter.run(_handler(awaits))


def _nanoseconds(handler: Callable[[int], Coroutine[Any, Any, None]], awaits: int) -> float:
    """Drive the handler by hand: an event loop would cost ten times what is measured.

    In CPU time, because on a busy machine wall time counts the neighbours too.
    """
    count = 2000
    started = time.thread_time_ns()
    for _ in range(count):
        running = handler(awaits)
        try:
            while True:
                running.send(None)
        except StopIteration:
            pass
    return (time.thread_time_ns() - started) / count
