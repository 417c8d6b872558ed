"""A TCP server that sends exactly the bytes it is told to, and records what it got.

A script is a coroutine that plays one accepted connection; `answers(...)` makes the usual ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from evenly.http1.connection import Connection
from evenly.http1.head import request_head

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = request_head("GET", "/", [], host="test", body_length=None, is_chunked=False)
CHUNKED_POST = request_head("POST", "/", [], host="test", body_length=None, is_chunked=True)

# Nothing in these tests takes long; this only keeps a broken one from hanging.
PATIENCE_SECONDS = 20.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Gone(Exception):
    """Say that the client closed its side."""


class Peer:
    """Be the server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = bytearray()

    async def request(self) -> bytes:
        """Return the next request, body and all; raise `Gone` if there is none."""
        try:
            head = await self.head()
            length = _LENGTH.search(head)
            if length is not None:
                return head + await self.take(int(length[1]))
            if b"\r\ntransfer-encoding: chunked\r\n" in head.lower():
                return head + await self._chunks()
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Gone from None
        return head

    async def head(self) -> bytes:
        data = await self.reader.readuntil(b"\r\n\r\n")
        self.received += data
        return data

    async def take(self, size: int) -> bytes:
        data = await self.reader.readexactly(size)
        self.received += data
        return data

    async def _chunks(self) -> bytes:
        data = b""
        while True:
            line = await self.reader.readuntil(b"\r\n")
            self.received += line
            size = int(line, 16)
            data += line + await self.take(size + 2)
            if not size:
                return data

    async def send(self, data: bytes, *, one_by_one: bool = False) -> None:
        if not one_by_one:
            self.writer.write(data)
            await self.writer.drain()
            return
        for byte in data:
            self.writer.write(bytes([byte]))
            # Two turns of the loop: one to notice that there is something to read, one to read it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(65_536):
                self.received += data

    def half_close(self) -> None:
        with contextlib.suppress(OSError):  # The client was faster.
            self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close so that the client gets RST and not FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script: TypeAlias = Callable[[Peer], Coroutine[Any, Any, None]]


class RawServer:
    """Be a listening socket, and what has become of its connections."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.requests: list[bytes] = []
        self.errors: list[BaseException] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.script(peer)
            if not writer.is_closing():
                await peer.gone()
        except (Gone, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001 -- shown by the test
            self.errors.append(error)
        finally:
            self.tasks.discard(task)
            writer.close()


def answers(*responses: bytes, one_by_one: bool = False) -> Script:
    """Answer each request of a connection with the next of these bytes."""

    async def play(peer: Peer) -> None:
        for response in responses:
            await peer.request()
            await peer.send(response, one_by_one=one_by_one)

    return play


async def always_ok(peer: Peer) -> None:
    """Answer every request."""
    while True:
        await peer.request()
        await peer.send(OK)


@contextlib.asynccontextmanager
async def raw_server(script: Script, *, port: int = 0, ssl: Any = None) -> AsyncIterator[RawServer]:
    """Serve; at the end all connections are closed, and a script's mistakes are raised."""
    server = RawServer(script)
    listener = await asyncio.start_server(server.play, "127.0.0.1", port, ssl=ssl, limit=1 << 20)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.tasks):
            task.cancel()
        while server.tasks:
            await asyncio.sleep(0)
        await listener.wait_closed()
        for error in server.errors:
            raise error


@contextlib.asynccontextmanager
async def connected(server: RawServer) -> AsyncIterator[Connection]:
    """Be connected, without a pool."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(loop), "127.0.0.1", server.port)
    try:
        yield connection
    finally:
        connection.close()
        await until(lambda: connection.transport is None)


@contextlib.asynccontextmanager
async def raw_connection(script: Script) -> AsyncIterator[tuple[Connection, RawServer]]:
    """Be connected to a server that plays this."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        raw_server(script) as server,
        connected(server) as connection,
    ):
        yield connection, server


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def in_time(awaitable: Awaitable[Any]) -> Any:
    """Wait, but not for ever."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names are enough


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Assert that no task and no file descriptor outlives the block."""
    gc.collect()
    files, tasks = open_files(), len(asyncio.all_tasks())
    yield
    gc.collect()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    await until(lambda: open_files() <= files)
