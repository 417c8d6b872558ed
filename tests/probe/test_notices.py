from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import cast

import pytest

from evenly.context import current_request, request_context
from evenly.probe.notices import NoticeRounds

LUCK = 20


class Timer:
    def __init__(self, delay: float, call: Callable[[], object], context: Context) -> None:
        self.delay = delay
        self.call = call
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """An event loop with one timer at most, run by hand."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(
        self, delay: float, call: Callable[..., object], *args: object, context: Context
    ) -> Timer:
        self.timers.append(Timer(delay, lambda: call(*args), context))
        return self.timers[-1]

    def run_next(self) -> float | None:
        """Run the timer that is set and return its delay; `None` if there is none."""
        live = [timer for timer in self.timers if not timer.is_cancelled]
        self.timers.clear()
        assert len(live) <= 1
        for timer in live:
            timer.context.run(timer.call)
            return timer.delay
        return None

    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)


def numbers(count: int) -> list[int]:
    return list(range(count))


def test_everybody_is_told_at_once_and_once_more_about_50_ms_later() -> None:
    sent: list[int] = []

    def send(probers: Sequence[int]) -> int:
        sent.extend(probers)
        return len(probers)

    rounds = NoticeRounds(send, rng=random.Random(LUCK))
    loop = HandLoop()
    rounds.begin(loop.as_loop(), numbers(3))
    assert sent == [0, 1, 2]

    delay = loop.run_next()

    assert delay is not None
    assert 0.04 <= delay <= 0.06  # 50 ms ± 20 %
    assert sent == [0, 1, 2, 0, 1, 2]
    assert loop.run_next() is None


def test_the_delay_has_jitter() -> None:
    delays = []
    for seed in range(10):
        loop = HandLoop()
        NoticeRounds[int](len, rng=random.Random(seed)).begin(loop.as_loop(), [1])
        delays.append(loop.run_next())

    assert len(set(delays)) == 10


def test_a_turn_sends_to_500() -> None:
    chunks: list[int] = []

    def send(probers: Sequence[int]) -> int:
        chunks.append(len(probers))
        return len(probers)

    loop = HandLoop()
    NoticeRounds(send, rng=random.Random(LUCK)).begin(loop.as_loop(), numbers(1_200))
    while loop.run_next() is not None:
        pass

    assert chunks == [500, 500, 200] * 2


@pytest.mark.parametrize("done", [0, 1, 2], ids=["first chunk", "between", "second round"])
def test_a_newer_list_replaces_what_is_left_of_the_older(done: int) -> None:
    sent: list[int] = []

    def send(probers: Sequence[int]) -> int:
        sent.extend(probers)
        return len(probers)

    loop = HandLoop()
    rounds = NoticeRounds(send, rng=random.Random(LUCK))
    rounds.begin(loop.as_loop(), numbers(600))
    for _ in range(done):
        loop.run_next()
    sent.clear()

    rounds.begin(loop.as_loop(), [1_000])
    while loop.run_next() is not None:
        pass

    assert sent == [1_000, 1_000]


def test_a_full_buffer_delays_the_rest_and_skips_nobody() -> None:
    sent: list[int] = []

    def send(probers: Sequence[int]) -> int:
        sent.extend(probers[:2])
        return len(probers[:2])

    loop = HandLoop()
    NoticeRounds(send, rng=random.Random(LUCK)).begin(loop.as_loop(), numbers(5))
    assert loop.run_next() == pytest.approx(0.002)
    while loop.run_next() is not None:
        pass

    assert sent == [0, 1, 2, 3, 4] * 2


def test_a_buffer_that_stays_full_is_given_up() -> None:
    tries = 0

    def send(probers: Sequence[int]) -> int:
        nonlocal tries
        tries += 1
        return 0

    loop = HandLoop()
    NoticeRounds(send, rng=random.Random(LUCK)).begin(loop.as_loop(), numbers(5))
    while loop.run_next() is not None:
        pass

    assert tries == 2 * (1 + 50)


def test_nobody_to_tell_is_nothing_to_do() -> None:
    loop = HandLoop()

    NoticeRounds[int](len, rng=random.Random(LUCK)).begin(loop.as_loop(), [])

    assert loop.timers == []


def test_cancelled_rounds_send_no_more() -> None:
    loop = HandLoop()
    rounds = NoticeRounds[int](len, rng=random.Random(LUCK))
    rounds.begin(loop.as_loop(), [1])

    rounds.cancel()
    rounds.cancel()

    assert loop.run_next() is None


def test_later_chunks_do_not_run_in_the_context_of_whoever_called() -> None:
    customers: list[str] = []

    def send(probers: Sequence[int]) -> int:
        customers.append(current_request().customer)
        return len(probers)

    loop = HandLoop()
    with request_context(customer="indexer"):
        NoticeRounds(send, rng=random.Random(LUCK)).begin(loop.as_loop(), [1])
    loop.run_next()

    assert customers == ["indexer", ""]
