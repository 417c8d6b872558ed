from __future__ import annotations

import asyncio
import threading

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
    loop = asyncio.get_running_loop()
    answered: list[int] = []
    returned = threading.Event()

    def ask_it() -> None:
        try:
            ask(loop, lambda: answered.append(1))
        finally:
            returned.set()

    asked = asyncio.ensure_future(asyncio.to_thread(ask_it))
    await asyncio.sleep(0)  # The thread begins, and asks a loop that does something else.
    assert returned.wait(20.0)

    with pytest.raises(TimeoutError):
        await asked
    await asyncio.sleep(0)
    assert answered == []  # It is not done after all, when nobody waits any more.


def test_a_closed_loop_is_an_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        ask(loop, int)
