"""Send a request body that comes piece by piece, while the response may come already."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable
from typing import Final, Protocol, final

from evenly.errors import UsageError
from evenly.http1.reply import Lost

__all__ = ["BodyWriter", "Sink"]

_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
# So much is sent before others get their turn and the other side is heard: to one that takes it as
# fast as it comes, a body that is at hand would go out as a whole.
_TURN_BYTES: Final = 256 * 1024
# What a piece costs however small it is, in bytes that could be sent instead.
_PIECE_COST_BYTES: Final = 4 * 1024


class Sink(Protocol):
    """Be the connection that a body is sent on."""

    loop: asyncio.AbstractEventLoop
    is_write_paused: bool

    def write(self, *pieces: bytes) -> None:
        """Send this."""

    def sending_failed(self, error: Exception) -> None:
        """Learn that the rest of the body does not come."""


@final
class BodyWriter:
    """Send one body in a task of its own."""

    __slots__ = ("_chunks", "_drained", "_is_stopped", "_left", "_sink", "_task", "is_done")

    def __init__(self, sink: Sink, head: bytes, body: AsyncIterable[bytes]) -> None:
        self._left: int | None = None
        """Bytes to come; `None` if only the last chunk will tell."""
        if not _CHUNKED.search(head):
            length = _LENGTH.search(head)
            if length is None:
                raise UsageError("the head does not say how long the body is")
            self._left = int(length[1])
        self._chunks = aiter(body)
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_stopped = False
        self.is_done = False
        """Whether all of it was written; its iterator may not have noticed yet."""

    def start(self) -> None:
        """Begin."""
        self._task = self._sink.loop.create_task(self._run())

    def stop(self) -> None:
        """Send no more."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until the body's iterator has been left, so that another one may be begun."""
        self.stop()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def resume(self) -> None:
        """Go on: what was written has gone out."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _run(self) -> None:
        turn_bytes = 0
        try:
            try:
                async for chunk in self._chunks:
                    await self._send(chunk)
                    turn_bytes += len(chunk) + _PIECE_COST_BYTES
                    if turn_bytes >= _TURN_BYTES:
                        turn_bytes = 0
                        await asyncio.sleep(0)
                self._finish()
            finally:
                # A generator that is left half-way gets to its end now, not when it is collected.
                close = getattr(self._chunks, "aclose", None)
                if close is not None:
                    await close()
        except asyncio.CancelledError:
            self._failed(Lost("the request's body was cancelled"))
        except Exception as error:  # noqa: BLE001 -- the caller's own, raised where it waits
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._is_stopped:
            self._sink.sending_failed(error)

    async def _send(self, chunk: bytes) -> None:
        size = len(chunk)
        if not size:
            return  # As a chunk it would end the body.
        if self._left is None:
            self._sink.write(b"%x\r\n" % size, chunk, b"\r\n")
        else:
            if size > self._left:
                raise ValueError("the request's body is longer than its Content-Length")
            self._left -= size
            self._sink.write(chunk)
            self.is_done = self._left == 0
        while self._sink.is_write_paused:
            self._drained = self._sink.loop.create_future()
            await self._drained

    def _finish(self) -> None:
        if self._left is None:
            self._sink.write(b"0\r\n\r\n")
        elif self._left:
            raise ValueError(
                f"the request's body is {self._left} bytes shorter than its Content-Length"
            )
        self.is_done = True
