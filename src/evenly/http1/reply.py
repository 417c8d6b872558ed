"""One response as its reader sees it: the head at once, the body as it comes.

A response belongs to its reader alone: its connection does not keep it alive, so that one that is
dropped unread is noticed, and gives its connection up.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable
from typing import Final, Protocol, final

from evenly.errors import UsageError

__all__ = [
    "UNREAD_MAX_BYTES",
    "BadResponse",
    "End",
    "Lost",
    "NotSent",
    "Reply",
    "Source",
    "TooLong",
]

# While more of a body than this waits for its reader, its connection is not read.
UNREAD_MAX_BYTES: Final = 65_536


class NotSent(Exception):
    """Report that not a byte of the request left: it may go elsewhere, whatever its method."""


class Lost(Exception):
    """Report that a request was sent, at least in part, and its response did not arrive whole."""


class BadResponse(Lost):
    """Report that what arrived was no HTTP, or more of it than anybody should send."""


class TooLong(Exception):
    """Report that a body is longer than its reader takes; nothing of it was taken."""


@final
class End(enum.Enum):
    """Say how a response ended."""

    COMPLETE = enum.auto()
    LOST = enum.auto()
    CLOSED = enum.auto()
    """Its reader wanted no more of it."""


class Source(Protocol):
    """Be the connection that a response comes from."""

    loop: asyncio.AbstractEventLoop
    awaited: Reply | None

    def resume(self) -> None:
        """Read on."""

    def abandon(self) -> None:
        """Close: the response is not wanted."""


@final
class Reply:
    """Be the final response to one request."""

    __slots__ = (
        "__weakref__",
        "_chunks",
        "_end",
        "_error",
        "_on_end",
        "_reason",
        "_source",
        "_waiter",
        "_wants_all",
        "headers",
        "http_version",
        "status",
        "trailers",
        "unread",
    )

    def __init__(
        self,
        source: Source,
        status: int,
        reason: bytes,
        http_version: str,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self.status = status
        self.http_version = http_version
        self.headers = headers
        """As received: names as they were sent, in their order."""
        self.trailers: list[tuple[bytes, bytes]] | None = None
        """What followed a chunked body, once that is complete."""
        self.unread = 0
        """How many bytes of the body have arrived and were not taken."""
        self._reason = reason
        self._source = source
        self._chunks: list[bytes] = []
        self._end: End | None = None
        self._error: Lost | None = None
        self._on_end: Callable[[End], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wants_all = False

    def __repr__(self) -> str:
        end = "arriving" if self._end is None else self._end.name
        return f"<Reply {self.status} {end} unread={self.unread}>"

    @property
    def reason(self) -> str:
        """The phrase behind the status, for people."""
        return self._reason.decode("latin-1")

    @property
    def end(self) -> End | None:
        """How it ended, or `None` while the body arrives."""
        return self._end

    @property
    def on_end(self) -> Callable[[End], None] | None:
        """Called once, when the body is complete, broken or given up; at once if it is already."""
        return self._on_end

    @on_end.setter
    def on_end(self, call: Callable[[End], None] | None) -> None:
        if self._end is None or call is None:
            self._on_end = call
        else:
            call(self._end)

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a header; its name in lower case."""
        length = len(name)
        for key, value in self.headers:
            if len(key) == length and key.lower() == name:
                return value
        return None

    async def next_chunk(self) -> bytes:
        """Return what has arrived, waiting for something to; b"" at the end.

        Raise `Lost` where the body broke off, after what came before that.  A cancelled call takes
        nothing.
        """
        while not self._chunks:
            if self._end is not None:
                return self._ended()
            await self._more()
        return self._take()

    async def read(self, max_bytes: int | None = None) -> bytes:
        """Return the whole rest of the body; raise `Lost` if it is not all there.

        Raise `TooLong` as soon as it is known to be longer than `max_bytes`.
        """
        if max_bytes is not None and self._end is None:
            length = self.get(b"content-length")
            if length is not None and length.isdigit() and int(length) > max_bytes:
                raise TooLong(f"the body has {int(length)} bytes, and {max_bytes} are taken")
        if self._end is None:
            await self._until_all_or(max_bytes)
        if max_bytes is not None and self.unread > max_bytes:
            raise TooLong(f"the body has more than the {max_bytes} bytes that are taken")
        if self._end is not End.COMPLETE:
            return self._ended()
        return self._take() if self._chunks else b""

    def close(self) -> None:
        """Give the rest of the body up, and the connection with it unless it is all there."""
        if self._end is None:
            self._source.abandon()
            self.finish(End.CLOSED, Lost("the response was closed here"))

    def __del__(self) -> None:
        if self._end is None:
            # Not now: objects die in the middle of anything, and in any thread.
            with contextlib.suppress(RuntimeError):  # The loop is closed, and all its sockets.
                self._source.loop.call_soon_threadsafe(self.close)

    def add(self, data: bytes) -> None:
        """Take a piece of the body from the connection."""
        self._chunks.append(data)
        self.unread += len(data)

    def is_full(self) -> bool:
        """Return whether the reader is so far behind that the connection is to wait for it."""
        return self.unread > UNREAD_MAX_BYTES and not self._wants_all

    def wake(self) -> None:
        """Tell the reader that something has arrived."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def finish(self, end: End, error: Lost | None = None) -> None:
        """End it, once: the connection has no more to say."""
        self._end = end
        self._error = error
        if self._waiter is not None:
            self.wake()
        if self._on_end is not None:
            call, self._on_end = self._on_end, None
            call(end)

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self.unread = 0
        if self._end is None:
            self._source.resume()
        return data

    def _ended(self) -> bytes:
        if self._error is not None:
            # A new one for each caller: an exception that is raised twice grows a traceback.
            raise type(self._error)(*self._error.args) from self._error.__cause__
        return b""

    async def _until_all_or(self, max_bytes: int | None) -> None:
        # Nothing is taken before all is there, so that a cancelled call takes nothing.
        self._wants_all = True
        try:
            while self._end is None and (max_bytes is None or self.unread <= max_bytes):
                await self._more()
        finally:
            self._wants_all = False

    async def _more(self) -> None:
        if self._waiter is not None:
            raise UsageError("a response has one reader at a time")
        source = self._source
        self._waiter = source.loop.create_future()
        # Somebody waits, so it is not dropped: a task that only waits for this has no other friend.
        source.awaited = self
        source.resume()
        try:
            await self._waiter
        finally:
            self._waiter = None
            if source.awaited is self:  # Else it serves the next response already.
                source.awaited = None
