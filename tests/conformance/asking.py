"""Ask a server through a pool, and note which connections were used."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

from evenly.http1.connection import Connection
from evenly.http1.head import request_head
from evenly.http1.pool import Pool, PoolEvent
from evenly.http1.reply import Reply

Header = tuple[str, str]


class Asking:
    """Be a client of one server."""

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, host: str = "localhost"
    ) -> None:
        self.events: list[PoolEvent] = []
        self.connections: list[Connection] = []
        """The one of each request, in their order."""
        self._host = host
        self.pool = Pool(
            asyncio.get_running_loop(),
            address,
            ssl=tls,
            server_hostname=host if tls else None,
            connect_seconds=10.0,
            idle_seconds=30.0,
            on_event=lambda _, event: self.events.append(event),
        )

    async def ask(
        self,
        method: str,
        target: str,
        *headers: Header,
        body: bytes | AsyncIterable[bytes] = b"",
    ) -> Reply:
        """Send a request; return when the head of the response is there."""
        is_chunked = not isinstance(body, bytes)
        head = request_head(
            method,
            target,
            headers,
            host=self._host,
            body_length=len(body) if isinstance(body, bytes) else None,
            is_chunked=is_chunked,
        )
        connection = await self.pool.acquire()
        self.connections.append(connection)
        return await connection.request(method, head, body)

    async def read(
        self,
        method: str,
        target: str,
        *headers: Header,
        body: bytes | AsyncIterable[bytes] = b"",
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the response."""
        response = await self.ask(method, target, *headers, body=body)
        return response.status, await response.read()


@asynccontextmanager
async def asking(
    address: str, *, tls: ssl.SSLContext | None = None, host: str = "localhost"
) -> AsyncIterator[Asking]:
    """Give a client, and see that nothing of it is left under way."""
    client = Asking(address, tls=tls, host=host)
    try:
        yield client
        assert client.pool.active == 0
    finally:
        client.pool.close()
        await client.pool.closed()


async def pieces(body: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    """Give a body in pieces, as a stream does."""
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]


async def settled(numbers: AsyncIterable[int]) -> int:
    """Return the number that comes three times in a row."""
    last, times = -1, 0
    async for number in numbers:
        times = times + 1 if number == last else 1
        last = number
        if times == 3:
            return number
    raise AssertionError("it never came to rest")
