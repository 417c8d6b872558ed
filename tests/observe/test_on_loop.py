from __future__ import annotations

import asyncio
import threading
import time

import pytest

from evenly.observe import on_loop
from evenly.observe.on_loop import ask


async def test_the_loop_answers() -> None:
    loop = asyncio.get_running_loop()

    assert await asyncio.to_thread(ask, loop, threading.get_ident) == threading.get_ident()


async def test_what_is_raised_on_the_loop_is_raised_where_it_was_asked() -> None:
    def question() -> None:
        raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        await asyncio.to_thread(ask, asyncio.get_running_loop(), question)


async def test_a_loop_that_is_blocked_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_loop, "_MOST_SECONDS", 0.01)
    answered: list[int] = []
    asked = asyncio.ensure_future(
        asyncio.to_thread(ask, asyncio.get_running_loop(), lambda: answered.append(1))
    )
    await asyncio.sleep(0)  # The thread begins ...
    time.sleep(0.2)  # ... and asks a loop that does something else.

    with pytest.raises(TimeoutError):
        await asked
    await asyncio.sleep(0)
    assert answered == []  # It is not done after all, when nobody waits any more.


def test_a_closed_loop_is_an_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        ask(loop, int)
