"""Ask for one page over HTTP/1.1, and take no more of the answer than there is room for."""

from __future__ import annotations

import asyncio
import functools
import http
import ssl
from dataclasses import dataclass
from typing import Final, final

from evenly.http1.connection import Connection
from evenly.http1.head import request_head
from evenly.http1.reply import BadResponse, Lost, NotSent, Reply
from evenly.lab.top.targets import Target

__all__ = ["BYTES_MAX", "Budget", "FetchError", "Fetched", "fetch"]

BYTES_MAX = 2_000_000
"""A page of an observer with 1,000 customers has a quarter of it."""
# Each answer has this much whatever the others take: one of a client and backend has 44 KB.
_SHARE_BYTES = 49_152
_HEADERS: Final = (
    ("User-Agent", "evenly-top"),
    ("Accept", "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
)


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
class Fetched:
    """Be an answer; `body` is empty unless the status is 200."""

    status: int
    location: str
    body: bytes


async def fetch(target: Target, budget: Budget) -> Fetched:
    """Ask and return the answer, or raise `FetchError` or an error of the network."""
    scheme, host, port = target.origin
    shown = f"[{host}]" if ":" in host else host
    head = request_head(
        "GET", target.path, _HEADERS, host=f"{shown}:{port}", body_length=None, is_chunked=False
    )
    loop = asyncio.get_running_loop()
    context = _tls() if scheme == "https" else None
    transport, connection = await loop.create_connection(
        lambda: Connection(loop), host, port, ssl=context
    )
    try:
        answer = await _answer(connection, head)
        is_ok = answer.status == http.HTTPStatus.OK
        body = await _body(answer, budget) if is_ok else b""
        location = (answer.get(b"location") or b"").decode("latin-1")
        return Fetched(answer.status, location, body)
    except BadResponse as error:
        raise FetchError(f"the answer is not HTTP: {error}") from None
    finally:
        # Not close(): that waits until what was written is sent, and for the end of TLS.
        transport.abort()


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # Reading all certificates takes milliseconds.


async def _answer(connection: Connection, head: bytes) -> Reply:
    try:
        return await connection.request("GET", head)
    except BadResponse:
        raise
    except (Lost, NotSent):
        raise FetchError("the connection ended without an answer") from None


async def _body(answer: Reply, budget: Budget) -> bytes:
    """Read a body to its end, which need not be the end of the connection."""
    length = answer.get(b"content-length")
    if length is not None and int(length) > BYTES_MAX:
        budget.take(0, int(length))  # Refused at once, and not when so much has come.
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := await answer.next_chunk():
            budget.take(size, size + len(piece))
            size += len(piece)
            pieces.append(piece)
    except BadResponse:
        raise
    except Lost:
        raise FetchError("the answer was cut off") from None
    return b"".join(pieces)
