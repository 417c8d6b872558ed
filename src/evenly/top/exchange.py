"""Ask for one page over HTTP/1.1, and take no more of the answer than there is room for."""

from __future__ import annotations

import asyncio
import functools
import http.client
import io
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Final, cast, final

from evenly.top.targets import Target

__all__ = ["BYTES_MAX", "Budget", "FetchError", "Response", "exchange"]

BYTES_MAX = 2_000_000
"""A page of an observer with 1,000 customers has a quarter of it."""
# Each answer has this much whatever the others take: one of a client and backend has 44 KB.
_SHARE_BYTES = 49_152
_HEAD_BYTES: Final = 1 << 16
_CHUNK_BYTES: Final = 1 << 16
_CHUNK_SIZE: Final = re.compile(rb"\s*([0-9a-fA-F]{1,12})\s*(;.*)?\r?\n", re.DOTALL)


class FetchError(Exception):
    """Report in a few words why there is no page."""


@final
class Budget:
    """Be what the answers of one look may take together, beyond a small share of each.

    500 pages of 2 MB would be a gigabyte.  The share is there so that some large pages, or bad
    ones, do not cost the others their rows.
    """

    def __init__(self, pool_bytes: int = 8_000_000) -> None:
        self._pool_bytes = pool_bytes
        self._left = pool_bytes

    def take(self, before: int, now: int) -> None:
        """Count an answer that grew from `before` bytes to `now`; raise if that is too much."""
        if now > BYTES_MAX:
            raise FetchError(f"the answer is larger than {BYTES_MAX / 1e6:g} MB")
        self._left -= max(0, now - _SHARE_BYTES) - max(0, before - _SHARE_BYTES)
        if self._left < 0:
            self._left = 0
            raise FetchError(f"all answers together are larger than {self._pool_bytes / 1e6:g} MB")


@final
@dataclass(frozen=True, slots=True)
class Response:
    """Be an answer; `body` is empty unless the status is 200."""

    status: int
    location: str
    body: bytes


async def exchange(target: Target, budget: Budget) -> Response:
    """Ask and return the answer, or raise `FetchError` or an error of the network."""
    scheme, host, port = target.origin
    context = _tls() if scheme == "https" else None
    reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=_HEAD_BYTES)
    try:
        shown = f"[{host}]" if ":" in host else host
        writer.write(
            f"GET {target.path} HTTP/1.1\r\nHost: {shown}:{port}\r\nUser-Agent: evenly-top\r\n"
            "Accept: text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1\r\n"
            "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        head = await _head(reader)
        body = b""
        if head.status == http.HTTPStatus.OK:
            body = await _Body(reader, budget).read(head)
        return Response(head.status, head.headers.get("location", ""), body)
    finally:
        # Not close(): that waits until what was written is sent, and for the end of TLS.
        writer.transport.abort()


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # Reading all certificates takes milliseconds.


class _Received:
    """Be as much of a socket as `HTTPResponse` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:  # noqa: ARG002 -- it is always "rb"
        """Return all of it."""
        return io.BytesIO(self._data)


async def _head(reader: asyncio.StreamReader) -> http.client.HTTPResponse:
    """Return the answer's head, which is the standard library's to understand."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
        head = http.client.HTTPResponse(cast("socket.socket", _Received(raw)))
        head.begin()
    except asyncio.LimitOverrunError:
        raise FetchError(f"the answer's head is larger than {_HEAD_BYTES:,} bytes") from None
    except (asyncio.IncompleteReadError, http.client.HTTPException, ValueError, OverflowError):
        raise FetchError("the answer is not HTTP") from None
    return head


@final
class _Body:
    """Read a body to its end, which need not be the end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, budget: Budget) -> None:
        self._reader = reader
        self._budget = budget
        self._pieces: list[bytes] = []
        self._size = 0

    async def read(self, head: http.client.HTTPResponse) -> bytes:
        try:
            if head.chunked:
                await self._chunks()
            elif head.length is not None:
                await self._exactly(head.length)
            else:
                while await self._piece(_CHUNK_BYTES):
                    pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise FetchError("the answer was cut off") from None
        return b"".join(self._pieces)

    async def _chunks(self) -> None:
        while True:
            found = _CHUNK_SIZE.fullmatch(await self._reader.readuntil(b"\n"))
            if found is None:
                raise FetchError("the answer was cut off")
            size = int(found[1], 16)
            if size == 0:
                return  # What may follow are headers that nobody reads.
            await self._exactly(size)
            await self._reader.readuntil(b"\n")

    async def _exactly(self, size: int) -> None:
        # A length that is too much is refused at once, and not when so much has come.
        if self._size + size > BYTES_MAX:
            self._budget.take(0, self._size + size)
        while size > 0:
            count = await self._piece(min(size, _CHUNK_BYTES))
            if count == 0:
                raise FetchError("the answer was cut off")
            size -= count

    async def _piece(self, most: int) -> int:
        piece = await self._reader.read(most)
        self._budget.take(self._size, self._size + len(piece))
        self._size += len(piece)
        self._pieces.append(piece)
        return len(piece)
