"""Run a server from its start to its clean end: signals, warm-up, lame duck, drain.

The steps and their order are those of `evenly.runtime.lifecycle`; here is what gRPC does at each.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

import grpc
import grpc.aio

from evenly.errors import UsageError
from evenly.grpc.server.interceptor import Interceptor
from evenly.grpc.server.server import Server
from evenly.runtime.lifecycle import WarmUp, check_grace, live, run_warm_up, signals_to

__all__ = ["serve"]

_LONG_SECONDS: Final = 3600.0


async def serve(
    server: grpc.aio.Server,
    *,
    warm_up: WarmUp | None = None,
    interceptor: Interceptor | None = None,
    grace_seconds: float = 5.0,
) -> None:
    """Start `server`, serve until SIGTERM or SIGINT, drain and stop.

    It listens at once as a lame duck, runs `warm_up`, and then asks clients to send.  At the first
    signal it becomes a lame duck again, serves until nobody sends any more (or `drain_seconds` of
    its config have passed), and gives what is left `grace_seconds`.  At a second signal, more than
    a second later, or at one during the warm-up, it stops at once.  If `warm_up` raises, the server
    is stopped first.

    A server that was not made by `evenly.grpc.server` needs its `interceptor`.
    """
    check_grace(grace_seconds)
    guard = server.guard if isinstance(server, Server) else interceptor
    if guard is None:
        raise UsageError(
            "serve() takes what evenly.grpc.server() returns, or another grpc.aio.Server together "
            "with interceptor=, the evenly.grpc.interceptor() that it was made with"
        )
    guard.starts_as_lame_duck = True
    signalled: asyncio.Queue[None] = asyncio.Queue()
    with signals_to(signalled):
        await live(_Life(server, guard, warm_up), signalled, grace_seconds=grace_seconds)


@final
class _Life:
    """Do with a gRPC server what `evenly.runtime.lifecycle` asks for."""

    def __init__(self, server: grpc.aio.Server, guard: Interceptor, warm_up: WarmUp | None) -> None:
        self._server = server
        self._guard = guard
        self._warm_up = warm_up

    @property
    def active(self) -> int:
        return self._guard.runtime.active

    async def start(self) -> None:
        if isinstance(self._server, Server):
            await self._server.start_as_lame_duck()
        else:
            self._guard.attach(self._server)
            self._guard.start()
            await self._server.start()

    async def warm_up(self) -> None:
        await run_warm_up(self._warm_up)

    def announce_healthy(self) -> None:
        self._guard.announce_healthy()

    async def stopped(self) -> None:
        # With a time-out: without one a cancellation here would end the server's own future.
        while await self._server.wait_for_termination(_LONG_SECONDS):
            pass

    def enter_lame_duck(self) -> None:
        self._guard.runtime.enter_lame_duck()

    async def drained(self) -> None:
        await self._guard.runtime.drained()

    async def stop(self, grace: float | None) -> None:
        self._guard.end_streams()
        await self._server.stop(grace)  # gRPC takes the shorter grace of two calls.

    def close(self) -> None:
        self._guard.stop()
