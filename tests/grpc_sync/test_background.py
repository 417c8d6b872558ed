"""The one thread that looks after what callers have no time for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evenly.grpc.sync import background
from tests.grpc_sync.backends import LONG_SECONDS, threads


def test_it_is_one_for_all_and_ends_with_its_last_user() -> None:
    first = background.hold()
    assert background.hold() is first
    assert threads()["evenly"] == 1
    background.release()
    assert not first.loop.is_closed()
    background.release()
    assert first.loop.is_closed()
    assert threads()["evenly"] == 0
    second = background.hold()
    assert second is not first
    background.release()


def test_functions_run_on_its_thread_and_their_results_come_back() -> None:
    running = background.hold()
    try:
        assert running.run(threading.current_thread).name == "evenly"
        assert not running.is_here
        assert running.run(lambda: running.is_here)
        assert running.run(lambda: running.run(lambda: 7)) == 7  # It does not wait for itself.

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            running.run(fail)
    finally:
        background.release()


def test_what_is_left_is_cancelled_at_the_end() -> None:
    running = background.hold()
    ended = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.set()

    asyncio.run_coroutine_threadsafe(wait(), running.loop)
    running.run(lambda: None)
    background.release()
    assert ended.wait(LONG_SECONDS)
    called: list[int] = []
    assert not running.soon(called.append, 1)  # Too late: it does nothing, and does not raise.
    assert called == []
    running.run(called.append, 2)  # Whoever waits for it does it.
    assert called == [2]
