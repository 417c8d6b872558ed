"""Answer a request without a framework."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Send

from evenly.lab.dashboard.history import encode

__all__ = ["Headers", "answer", "start"]

Headers = Iterable[tuple[bytes, bytes]]


async def start(send: Send, status: int, headers: Headers) -> None:
    """Send a status and headers."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def answer(send: Send, status: int, value: object, headers: Headers = ()) -> None:
    """Answer with JSON."""
    body = encode(value)
    length = str(len(body)).encode("ascii")
    own = ((b"content-type", b"application/json"), (b"content-length", length))
    await start(send, status, (*own, *headers))
    await send({"type": "http.response.body", "body": body, "more_body": False})
