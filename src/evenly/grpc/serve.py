"""Run a server from its start to its clean end: signals, warm-up, lame duck, drain.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State", the clean shutdown:
the scheduler sends SIGTERM; the task enters lame duck and asks its clients to send elsewhere;
requests that are under way, or come nevertheless, are served; as responses flow back, the active
ones fall to zero; the task exits.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import grpc
import grpc.aio

from evenly.core import check
from evenly.errors import UsageError
from evenly.grpc.interceptor import Interceptor
from evenly.grpc.server import Server

__all__ = ["serve"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LONG_SECONDS: Final = 3600.0
_CANCEL_SECONDS: Final = 1.0


async def serve(
    server: grpc.aio.Server,
    *,
    warm_up: Callable[[], Awaitable[None]] | None = None,
    interceptor: Interceptor | None = None,
    grace_seconds: float = 5.0,
) -> None:
    """Start `server`, serve until SIGTERM or SIGINT, drain and stop.

    It listens at once as a lame duck, runs `warm_up`, and then asks clients to send.  At the first
    signal it becomes a lame duck again, serves until nobody sends any more (or `drain_seconds` of
    its config have passed), and gives what is left `grace_seconds`.  At the second signal, or at
    one during the warm-up, it stops at once.  If `warm_up` raises, the server is stopped first.

    A server that was not made by `evenly.grpc.server` needs its `interceptor`.
    """
    check.number("grace_seconds", grace_seconds, 0.0, 86_400.0)
    guard = server.guard if isinstance(server, Server) else interceptor
    if guard is None:
        raise UsageError(
            "serve() takes what evenly.grpc.server() returns, or another grpc.aio.Server together "
            "with interceptor=, the evenly.grpc.interceptor() that it was made with"
        )
    guard.starts_as_lame_duck = True
    signalled: asyncio.Queue[None] = asyncio.Queue()
    with _signals_to(signalled):
        grace: float | None = None  # at once
        try:
            await _start(server, guard)
            if await _is_first(_warmed_up(guard, warm_up), signalled.get()):
                if await _is_first(_stopped(server), signalled.get()):
                    return  # Somebody else has stopped it.
                guard.runtime.enter_lame_duck()
                if await _is_first(guard.runtime.drained(), signalled.get()):
                    grace = grace_seconds
        finally:
            await _stop(server, guard, grace, signalled)


async def _start(server: grpc.aio.Server, guard: Interceptor) -> None:
    if isinstance(server, Server):
        await server.start_as_lame_duck()
    else:
        guard.attach(server)
        guard.start()
        await server.start()


async def _warmed_up(guard: Interceptor, warm_up: Callable[[], Awaitable[None]] | None) -> None:
    if warm_up is not None:
        await warm_up()
    guard.announce_healthy()


async def _stopped(server: grpc.aio.Server) -> None:
    # With a time-out, because without one a cancellation here would end the server's own future.
    while await server.wait_for_termination(_LONG_SECONDS):
        pass


async def _stop(
    server: grpc.aio.Server,
    guard: Interceptor,
    grace: float | None,
    signalled: asyncio.Queue[None],
) -> None:
    guard.runtime.enter_lame_duck()
    guard.end_streams()
    stopping = asyncio.ensure_future(server.stop(grace))
    try:
        # Not cancelled at a signal: gRPC takes the shorter grace of two calls.
        if not await _is_first(asyncio.shield(stopping), signalled.get()):
            await server.stop(None)
        await stopping
    finally:
        guard.stop()


async def _is_first(wanted: Awaitable[object], signal_comes: Awaitable[None]) -> bool:
    """Wait for one of the two and cancel the other; raise what `wanted` raises."""
    tasks = (asyncio.ensure_future(wanted), asyncio.ensure_future(signal_comes))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        # No longer than so: a warm-up may swallow its cancellation.
        await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)


@contextmanager
def _signals_to(signalled: asyncio.Queue[None]) -> Iterator[None]:
    """Put signals into a queue, and give back the handlers that there were."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may handle signals: somebody else stops this one.
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, signalled.put_nowait, None)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            # `None` is a handler that was not installed from Python, and cannot be given back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
