"""Ask on an event loop what its thread alone may ask, from another thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["ask"]

T = TypeVar("T")

# How long to wait for a loop that is busy.
_MOST_SECONDS: Final = 1.0


def ask(loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> T:
    """Return what `question` answers on the loop; raise what it raises.

    `TimeoutError` where the loop does not get to it within a second, `RuntimeError` where it is
    closed.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def take() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 -- it is raised where it was asked for
                answer.set_exception(error)

    # In an empty context: the one that is current may belong to a request.
    loop.call_soon_threadsafe(take, context=contextvars.Context())
    try:
        return answer.result(_MOST_SECONDS)
    finally:
        answer.cancel()  # It need not be answered any more.
