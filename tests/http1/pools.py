"""Pools to test with: watched, and with nothing left of them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from ssl import SSLContext
from typing import Any

from evenly.http1.pool import Pool, PoolEvent
from tests.http1.raw_server import (
    GET,
    PATIENCE_SECONDS,
    RawServer,
    Script,
    nothing_left,
    raw_server,
)
from tests.suites.transports.processes import free_port

OPENED, REFUSED, LOST = PoolEvent.OPENED, PoolEvent.REFUSED, PoolEvent.LOST


class Watched:
    """Be a pool, and the events that it told."""

    def __init__(self, address: str, **options: Any) -> None:
        self.events: list[PoolEvent] = []
        options = {"connect_seconds": 5.0, "idle_seconds": 60.0} | options
        loop = asyncio.get_running_loop()
        self.pool = Pool(loop, address, on_event=self._told, **options)

    def _told(self, pool: Pool, event: PoolEvent) -> None:
        assert pool is self.pool
        self.events.append(event)

    async def get(self) -> bytes:
        connection = await self.pool.acquire()
        return await (await connection.request("GET", GET)).read()


@contextlib.asynccontextmanager
async def watched(address: str, **options: Any) -> AsyncIterator[Watched]:
    """Have a pool; nothing may be left of it."""
    async with nothing_left(), watched_loosely(address, **options) as it:
        yield it


@contextlib.asynccontextmanager
async def watched_loosely(address: str, **options: Any) -> AsyncIterator[Watched]:
    """Have a pool, without a look at everything in the process, which takes long."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        it = Watched(address, **options)
        try:
            yield it
        finally:
            it.pool.close()
            await it.pool.closed()
            assert (it.pool.active, it.pool.idle, it.pool.connecting) == (0, 0, 0)


@contextlib.asynccontextmanager
async def pooled(
    script: Script, *, server_ssl: SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[Watched, RawServer]]:
    async with (
        raw_server(script, ssl=server_ssl) as server,
        watched(server.address, **options) as it,
    ):
        yield it, server


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """Have an address at which a connect neither succeeds nor fails: its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def closed_port() -> str:
    """Return an address at which nobody listens, now or later."""
    return f"127.0.0.1:{free_port()}"


def counts(pool: Pool) -> tuple[int, int, int]:
    return pool.active, pool.idle, pool.connecting
