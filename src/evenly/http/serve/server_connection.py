"""Bound what a stranger's connection may cost a server: bytes, time, descriptors.

uvicorn waits for a head for as long as anyone likes and keeps whatever is sent of it, accepts until
no descriptor is left, and keeps a connection that was reset, with its last request, until the
keep-alive time is over.  `evenly serve` serves by this class; whoever runs uvicorn gives it as
`http="evenly.http.serve.server_connection:ServerConnection"`.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from evenly.http.serve.connection_limits import ConnectionLimits
from evenly.http.serve.room import Room
from evenly.http.serve.stall import Stall

__all__ = ["ServerConnection"]


class _TooLarge(Exception):
    """Make the parser stop."""


class ServerConnection(HttpToolsProtocol):
    """One connection, within its limits."""

    room: ClassVar[Room] = Room(ConnectionLimits())
    """All connections of a class share it: a server whose limits are its own has a subclass."""

    @classmethod
    def within(cls, limits: ConnectionLimits) -> type[ServerConnection]:
        """Return a class with these limits, for one server."""
        return type(cls.__name__, (cls,), {"room": Room(limits)})

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*arguments, **keywords)
        self._limits = self.room.limits
        # What the parser was given since it last told of a head, a body or an end: it keeps that,
        # be it a head, a trailer or whatever else one can begin.  Of what begins behind a whole
        # request in the same read the first bytes are not counted: at most one read.
        self._pending_bytes = 0
        self._is_midway = False  # A request has begun to arrive, and not ended.
        self._deadline: asyncio.TimerHandle | None = None
        self._received_bytes = 0  # Of requests that came in several parts.
        self._body_stall: Stall | None = None
        self._answer_stall: Stall | None = None

    # The transport's.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is room."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if self.room.admits(len(self.connections), -1 if sock is None else sock.fileno()):
            self._watch()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came; a byte now and then does not move the deadline."""
        self._pending_bytes += len(data)
        self._is_midway = True
        super().data_received(data)
        if self._pending_bytes > self._limits.head_max_bytes:
            self._refuse(431)
        elif self._is_midway:
            self._received_bytes += len(data)
            if not self._is_waiting():
                self._watch_body()
            elif self._deadline is None:
                self._watch()

    def pause_writing(self) -> None:
        """Learn that an answer waits to be read."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        """Learn that it is being read."""
        super().resume_writing()
        if self._answer_stall is not None and not self.transport.is_closing():
            self._answer_stall.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind: no timer, and no circle that waits for the garbage collector."""
        super().connection_lost(exc)
        self._forget()
        self._unset_keepalive_if_required()
        for stall in (self._body_stall, self._answer_stall):
            if stall is not None:
                stall.end()
        self._body_stall = self._answer_stall = None
        # An application that still runs has its own hold on these.
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        self.pipeline.clear()

    # The parser's.

    def on_message_begin(self) -> None:
        """Note that a request begins, perhaps right behind another."""
        self._is_midway = True
        self._pending_bytes = self._pending_bytes or 1  # Behind another.
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin a request whose head is here."""
        if len(self.headers) > self._limits.headers_max or (
            # A body may have come along: then it is worth a look.
            self._pending_bytes > self._limits.head_max_bytes
            and self._head_bytes() > self._limits.head_max_bytes
        ):
            self._pending_bytes = self._limits.head_max_bytes + 1
            raise _TooLarge
        if len(self.pipeline) >= self._limits.pipelined_max and not self._is_waiting():
            self._pending_bytes = self._limits.head_max_bytes + 1
            raise _TooLarge
        self._pending_bytes = 0
        if self._deadline is not None:
            self._forget()
        # A trailer's would follow, and be taken for headers that a proxy has let through.
        self.scope["headers"] = self.headers.copy()
        super().on_headers_complete()
        if self.parser.should_upgrade() and self.cycle is not None:
            # Declined.  What comes behind is another protocol's, or the parser has dropped it.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which has bounds of its own."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that all of a request is here; its answer may have been faster."""
        super().on_message_complete()
        self._pending_bytes = 0
        self._is_midway = False
        if self.cycle is not None and self.cycle.response_complete:
            self._forget()
            # What came late has cancelled the timer.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # uvicorn's.

    def on_response_complete(self) -> None:
        """Wait for the next request, or for what is still to come of this one."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_answer()
        elif self.pipeline:
            self.flow.pause_reading()  # Each answer would let in as much as there was before.
        elif self._is_midway and self._is_waiting():
            self._unset_keepalive_if_required()
            self._watch()

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to another protocol, without our timers."""
        self._forget()
        self._unset_keepalive_if_required()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, or too large for one."""
        if self._pending_bytes > self._limits.head_max_bytes:
            self._refuse(431)
        elif self._is_waiting():
            super().send_400_response(msg)
        else:
            self.transport.abort()  # Another answer is under way.

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also where the client does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    # Ours.

    def _is_waiting(self) -> bool:
        """Return whether no request is being answered: the application has bounds of its own."""
        return self.cycle is None or self.cycle.response_complete

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.head_seconds, self._too_late)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_body(self) -> None:
        if self._body_stall is None:
            seconds = self._limits.stall_seconds
            self._body_stall = Stall(self.loop, self.transport, seconds, self._body_progress)
        self._body_stall.watch()

    def _body_progress(self) -> float | None:
        cycle = self.cycle
        if self._is_waiting() or not cycle.more_body:
            return None
        if self.flow.read_paused or cycle.waiting_for_100_continue:
            return self.loop.time()  # It is the application that takes its time.
        return self._received_bytes

    def _watch_answer(self) -> None:
        if self._answer_stall is None:
            seconds = self._limits.stall_seconds
            self._answer_stall = Stall(self.loop, self.transport, seconds, self._answer_progress)
        self._answer_stall.watch()

    def _answer_progress(self) -> float | None:
        # Nothing is added meanwhile: who sends waits, or has closed.
        return self.transport.get_write_buffer_size() or None

    def _too_late(self) -> None:
        if self._pending_bytes:
            self._refuse(408)
        else:
            self.transport.abort()  # Who has asked nothing expects no answer.

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        # `close` waits for a reader that does not read.
        if not self._is_waiting() or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.transport.write(
            STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n\r\n"
        )
        self.transport.close()
        self._watch_answer()
