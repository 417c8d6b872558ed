"""Write frames to one reader as server-sent events (HTML standard, "Server-sent events").

`event: history` with the list of frames from before comes first, then one `event: frame` each.
`event: ended` says that the source makes no more of them; the stream stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, final

from starlette.types import Receive, Scope, Send

from evenly.lab.dashboard.asgi import answer, start
from evenly.lab.dashboard.history import ENDED, History, Subscription

__all__ = ["STREAMS_MAX", "FrameStream"]

# So that one with the link and a broken program cannot use up our memory and file descriptors.
STREAMS_MAX: Final = 32

# A reader that takes nothing holds no more of us than a piece and what the kernel buffers.
_PIECE_BYTES: Final = 32 * 1024
_HEADERS: Final = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
_HEARTBEAT: Final = b":\n\n"  # A comment.


@final
class FrameStream:
    """Be the answer to one request for frames, as an ASGI application."""

    def __init__(self, history: History, *, heartbeat_seconds: float) -> None:
        self._history = history
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the reader has gone or the history is closed."""
        if scope["method"] == "HEAD":
            await start(send, 200, _HEADERS)
            await _send_last(send)
        elif self._history.subscriptions >= STREAMS_MAX:
            error = f"at most {STREAMS_MAX} pages can follow at a time: close one"
            await answer(send, 503, {"error": error})
        else:
            with self._history.subscribe() as subscription:
                await self._stream(subscription, receive, send)

    async def _stream(self, subscription: Subscription, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(subscription, send))
        leaving = asyncio.ensure_future(_has_left(receive))
        both = (writing, leaving)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in both:
            if not task.cancelled():
                task.result()

    async def _write(self, subscription: Subscription, send: Send) -> None:
        await start(send, 200, _HEADERS)
        for piece in _pieces(_history_event(subscription.take_past())):
            await _send_more(send, piece)
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    frame = await subscription.next()
            except TimeoutError:
                await _send_more(send, _HEARTBEAT)
                continue
            if frame is None:
                break
            await _send_more(send, _event(frame))
        await _send_last(send)


def _event(frame: bytes) -> bytes:
    if frame == ENDED:
        return b"event: ended\ndata: {}\n\n"
    return b"event: frame\ndata: " + frame + b"\n\n"


def _history_event(frames: Iterable[bytes]) -> Iterator[bytes]:
    between = b"event: history\ndata: ["
    for frame in frames:
        yield between
        yield frame
        between = b","
    # An empty history is a list too.
    yield b"]\n\n" if between == b"," else between + b"]\n\n"


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts: a page parses few large pieces faster than hundreds."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_last(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
