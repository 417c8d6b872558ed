"""Be what the servers serve: an ASGI application that answers in every way HTTP/1.1 has.

`/sized/N` and `/chunked/N` answer with N bytes of a pattern; `/count` says what it was sent, and
`/count-later` begins to read only after a `/go`; `/sent` says how far the last answer has got.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

PIECE = 32_768
_PATTERN = bytes(range(256)) * (PIECE // 256)


def pattern(length: int) -> bytes:
    """Return the body of `/sized/N` and `/chunked/N`."""
    return (_PATTERN * (length // PIECE + 1))[:length]


class _State:
    """Be what one process remembers between requests."""

    def __init__(self) -> None:
        self.sent = 0
        self.may_go = asyncio.Event()


_state = _State()


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve one request."""
    if scope["type"] != "http":
        return
    name, *arguments = scope["path"].strip("/").split("/")
    if name in {"count", "count-later"}:
        if name == "count-later":
            await _state.may_go.wait()
            _state.may_go.clear()
        await _answer(send, json.dumps(await _count(receive)).encode())
    elif name in {"sized", "chunked"}:
        await _stream(send, int(arguments[0]), is_sized=name == "sized")
    elif name == "status":
        status = int(arguments[0])
        has_body = status not in {204, 304}
        await _answer(send, b"so be it" if has_body else None, status)
    elif name == "close":
        await _answer(send, b"the last", headers=[(b"connection", b"close")])
    elif name == "sent":
        await _answer(send, str(_state.sent).encode())
    elif name == "go":
        _state.may_go.set()
        await _answer(send, b"")
    else:
        await _answer(send, b"nothing here", 404)


async def _count(receive: Receive) -> dict[str, object]:
    length, digest = 0, hashlib.sha256()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        piece = message.get("body", b"")
        length += len(piece)
        digest.update(piece)
        if not message.get("more_body", False):
            break
    return {"length": length, "digest": digest.hexdigest()}


async def _stream(send: Send, length: int, *, is_sized: bool) -> None:
    _state.sent = 0
    headers = [(b"content-length", str(length).encode())] if is_sized else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for begin in range(0, length, PIECE):
        piece = _PATTERN[: min(PIECE, length - begin)]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        _state.sent += len(piece)
    await send({"type": "http.response.body", "body": b""})


async def _answer(
    send: Send, body: bytes | None, status: int = 200, headers: Headers | None = None
) -> None:
    sized = [] if body is None else [(b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*sized, *(headers or [])]}
    )
    await send({"type": "http.response.body", "body": body or b""})
