"""One HTTP/1.1 connection: one request at a time, and exact words about what became of it.

`NotSent` and `Lost` are the difference that a retry needs: after `NotSent` no byte of the request
has been handed to the kernel, so that it may go elsewhere whatever it does.
"""

from __future__ import annotations

import asyncio
import enum
import threading
import weakref
from collections.abc import AsyncIterable
from typing import Final, Protocol, TypeAlias, cast, final

from evenly.errors import UsageError
from evenly.http1.body import BodyWriter
from evenly.http1.reader import Reader
from evenly.http1.reply import BadResponse, End, Lost, NotSent, Reply

__all__ = ["BadResponse", "Body", "Connection", "End", "Lost", "NotSent", "Owner", "Reply"]

Body: TypeAlias = bytes | AsyncIterable[bytes]

# A body up to this size is joined to its head, so that both leave in one write; copying a larger
# one would cost more than a second write.
_JOINED_MAX_BYTES: Final = 65_536
_BUFFER_BYTES: Final = 65_536
# What is left of a request's body is not for a response that redirects or refuses it.
_UNWANTED_STATUS: Final = 300


@final
class _State(enum.Enum):
    """Say what a connection waits for."""

    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    CLOSED = enum.auto()


_IDLE, _HEAD, _BODY, _CLOSED = _State.IDLE, _State.HEAD, _State.BODY, _State.CLOSED


class _Local(threading.local):
    buffer: memoryview | None = None


_LOCAL: Final = _Local()


def _shared_buffer() -> memoryview:
    """Return the buffer that all connections read into whose loops this thread runs.

    What arrives is looked at before the next read, and copied where it is kept.  asyncio would
    allocate 256 KiB for each read, which takes longer than all the rest of a small response.
    """
    buffer = _LOCAL.buffer
    if buffer is None:
        buffer = _LOCAL.buffer = memoryview(bytearray(_BUFFER_BYTES))
    return buffer


class Owner(Protocol):
    """Be told what becomes of a connection."""

    def release(self, connection: Connection) -> None:
        """Learn that a response is complete, and that another request may be sent."""

    def dropped(self, connection: Connection, *, is_broken: bool) -> None:
        """Learn, once, that it takes no more requests; broken if the other side ended a request."""

    def gone(self, connection: Connection) -> None:
        """Learn, last and once, that its socket is closed."""


@final
class Connection(asyncio.BufferedProtocol):
    """Send requests over one connection, one after the other."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_is_read_paused",
        "_is_tls",
        "_owner",
        "_reader",
        "_response",
        "_sending",
        "_state",
        "_transport",
        "_waiter",
        "awaited",
        "idle_seconds",
        "idle_since",
        "is_write_paused",
        "loop",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner | None = None, idle_seconds: float = 1.5
    ) -> None:
        self.loop = loop
        self.idle_seconds = idle_seconds
        """How long it may idle and be used again; a server's `Keep-Alive: timeout=` sets it."""
        self.idle_since = 0.0
        """For the pool: when it was released."""
        self.awaited: Reply | None = None
        """The response that somebody waits for now: no other one is kept alive from here."""
        self.is_write_paused = False
        self._owner = owner
        self._state = _CLOSED
        self._transport: asyncio.Transport | None = None
        self._reader = Reader(self)
        self._buffer = _shared_buffer()
        self._waiter: asyncio.Future[Reply] | None = None
        self._response: weakref.ref[Reply] | None = None
        self._sending: BodyWriter | None = None
        self._is_tls = False
        self._is_read_paused = False

    def __repr__(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"<Connection {peer} {self._state.name}>"

    @property
    def is_open(self) -> bool:
        """Whether it can take another request, now or after the present one."""
        if self._state is _CLOSED or self._transport is None or self._transport.is_closing():
            return False
        return self._state is not _BODY or self._reader.can_reuse

    @property
    def is_idle(self) -> bool:
        """Whether it can take a request now."""
        return self._state is _IDLE

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it runs on, to ask for addresses and certificates."""
        return self._transport

    async def request(self, method: str, head: bytes, body: Body = b"") -> Reply:
        """Send a request; return its response as soon as the final head is there.

        Raise `NotSent` if no byte of it left, `Lost` if some may have; whatever the body's iterator
        raises is raised here.  Cancelling it closes the connection.  A body may still be under way
        when the response comes: it goes on unless the response is complete or an error.
        """
        transport = self._transport
        if transport is None or self._state is _CLOSED or transport.is_closing():
            raise NotSent("the connection is closed")
        if self._state is not _IDLE:
            raise UsageError("a connection takes one request at a time")
        if isinstance(body, bytes):
            sending = None
            first, rest = (head + body, b"") if len(body) <= _JOINED_MAX_BYTES else (head, body)
        else:
            sending = self._make_sending(head, body)
            first, rest = head, b""
        self._state = _HEAD
        self._reader.begin(is_head=method == "HEAD")
        waiter: asyncio.Future[Reply] = self.loop.create_future()
        self._waiter = waiter
        transport.write(first)
        if transport.is_closing() and not self._is_tls:
            # Writing failed at once, so that nothing was taken.
            self._end(NotSent("the connection broke before the request was written"), True)
        try:
            if self._state is _HEAD:
                if rest:
                    transport.write(rest)
                if sending is not None:
                    sending.start()
            return await waiter
        except BaseException as error:
            self._give_up(waiter)
            # A coroutine that is thrown away may not wait any more.
            if sending is not None and not isinstance(error, GeneratorExit):
                await sending.stopped()
            raise

    def _make_sending(self, head: bytes, body: AsyncIterable[bytes]) -> BodyWriter:
        try:
            self._sending = sending = BodyWriter(self, head, body)
        except BaseException:
            # Nothing was sent, and nothing is wrong with the connection.
            if self._owner is not None:
                self._owner.release(self)
            raise
        return sending

    def close(self) -> None:
        """Close it, whatever it does; a request under way is `Lost`."""
        self._end(Lost("the connection was closed here"), False)

    # What the response and the request's body ask for.

    def resume(self) -> None:
        """Read on: the reader of the response has caught up."""
        if self._is_read_paused and self._state is _BODY and self._transport is not None:
            self._is_read_paused = False
            self._transport.resume_reading()

    def abandon(self) -> None:
        """Close it: its response is not wanted."""
        if self._state is not _CLOSED:
            self._leave(is_broken=False)

    def write(self, *pieces: bytes) -> None:
        """Send a piece of the request's body."""
        transport = self._transport
        # One that broke a moment ago has told nobody yet, and asyncio warns of what it is given.
        if transport is not None and not transport.is_closing():
            transport.writelines(pieces)

    def sending_failed(self, error: Exception) -> None:
        """Learn that the rest of the request's body does not come."""
        if self._state is _BODY and not isinstance(error, Lost):
            lost = Lost("the request's body failed")
            lost.__cause__ = error
            error = lost
        self._end(error, False)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._state = _IDLE

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 -- asyncio's signature
        """Return where to put what arrives."""
        # Asked each time: a loop may be run by one thread now and by another later.
        self._buffer = buffer = _shared_buffer()
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read what arrived."""
        self.received(self._buffer[:nbytes])

    def received(self, data: memoryview) -> None:
        """Read a piece of a response."""
        state = self._state
        reader = self._reader
        if state is _BODY:
            reader.response = self._current()
            if reader.response is None:
                self.abandon()  # It was dropped.
                return
        elif state is not _HEAD:
            # Whoever answers before the question chooses what the next one will be told.
            self.close()
            return
        try:
            reader.feed(data)
        except BadResponse as error:
            response, reader.response = reader.response, None
            if state is _HEAD and response is not None:
                response.finish(End.LOST)  # Its head was good, and nobody has seen it.
            self._end(error, False)
            return
        response, reader.response = reader.response, None
        if response is None or (state is _HEAD and not self._deliver(response)):
            return
        if reader.is_complete:
            self._complete(response)
            return
        if state is _HEAD:
            self._response = weakref.ref(response)
        response.wake()
        if response.is_full() and not self._is_read_paused and self._transport is not None:
            self._is_read_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """End: nothing is sent to a peer that has closed its side."""
        response = self._current()
        if response is not None and self._reader.ends_with_connection(response):
            self._leave(is_broken=False)
            response.finish(End.COMPLETE)
        else:
            self._end(Lost("the other side closed the connection"), self._state is not _IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the socket is closed."""
        is_broken = exc is not None or self._state is not _IDLE
        self._end(Lost(f"the connection broke: {exc}"), is_broken)
        self._transport = None
        if self._owner is not None:
            self._owner.gone(self)

    def pause_writing(self) -> None:
        """Wait: the other side does not take what is sent."""
        self.is_write_paused = True

    def resume_writing(self) -> None:
        """Send on."""
        self.is_write_paused = False
        if self._sending is not None:
            self._sending.resume()

    def _current(self) -> Reply | None:
        return None if self._response is None else self._response()

    def _deliver(self, response: Reply) -> bool:
        """Hand the response to who waits for it; return whether somebody does."""
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():  # Cancelled, and about to say so.
            response.close()
            return False
        self._state = _BODY
        waiter.set_result(response)
        if self._sending is not None and response.status >= _UNWANTED_STATUS:
            self._sending.stop()
        return True

    def _complete(self, response: Reply) -> None:
        """End a response that is all there, and perhaps be used again."""
        reader = self._reader
        if self._sending is not None or self.is_write_paused:
            self._judge_sending()
        if self._is_read_paused:
            self.resume()
        self._state = _IDLE
        if reader.can_reuse and self._transport is not None and not self._transport.is_closing():
            self._response = None
            if reader.keep_alive_seconds is not None:
                self._keep_alive(reader.keep_alive_seconds)
            if self._owner is not None:
                self._owner.release(self)
        else:
            self._leave(is_broken=False)
        response.finish(End.COMPLETE)

    def _judge_sending(self) -> None:
        """Stop to send a body that has been answered; half of one cannot be followed by a head."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.stop()
        if self.is_write_paused or not (sending is None or sending.is_done):
            self._reader.can_reuse = False
            if self._transport is not None:
                self._transport.abort()

    def _keep_alive(self, seconds: int) -> None:
        # A second less than the server says, for the way and its own timer.
        self.idle_seconds = max(seconds - 1.0, seconds / 2)

    def _give_up(self, waiter: asyncio.Future[Reply]) -> None:
        """Close, unless the response came at the moment at which its request was cancelled."""
        if self._waiter is waiter:
            self._waiter = None
            self._leave(is_broken=False)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().close()

    def _end(self, error: Exception, is_broken: bool) -> None:
        """Close, and tell whoever waits for something."""
        if self._state is _CLOSED:
            return
        response = self._current()
        waiter, self._waiter = self._waiter, None
        self._leave(is_broken=is_broken)
        if waiter is not None:
            if not waiter.done():
                waiter.set_exception(error)
        elif response is not None:
            response.finish(End.LOST, error if isinstance(error, Lost) else Lost(str(error)))

    def _leave(self, *, is_broken: bool) -> None:
        """Close, and take no more requests."""
        is_idle = self._state is _IDLE
        self._state = _CLOSED
        self._response = None
        if self._sending is not None:
            self._sending.stop()
            self._sending = None
        transport = self._transport
        if transport is not None:
            # What is under way is of no use to anybody; to write the rest first may take for ever.
            if is_idle:
                transport.close()
            else:
                transport.abort()
        if self._owner is not None:
            self._owner.dropped(self, is_broken=is_broken)
