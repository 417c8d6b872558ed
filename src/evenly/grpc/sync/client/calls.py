"""The kinds of call that their callers do not wait for, as gRPC's users know them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, final

import grpc

from evenly.core.request import Request
from evenly.grpc.sync.client.call import AnyCall, Sending
from evenly.grpc.sync.client.connection import Connection
from evenly.grpc.sync.client.errors import Unsent
from evenly.grpc.sync.client.request_stream import RequestStream
from evenly.grpc.sync.client.status import Sent

if TYPE_CHECKING:
    from evenly.grpc.sync.client.method import CallOptions, Method

__all__ = ["StreamStreamCall", "StreamUnaryFuture", "UnaryStreamCall", "UnaryUnaryFuture"]

_DROPPED: Final = Unsent(grpc.StatusCode.CANCELLED, "Cancelled upon garbage collection!")


class _UnaryRequest(AnyCall):
    """Send one message, which is there to be sent again."""

    def __init__(
        self, method: Method, request: Request, message: bytes, options: CallOptions
    ) -> None:
        self._message = message
        super().__init__(method, request, options)


class _StreamRequest(AnyCall):
    """Send a stream of messages, kept for a while to be sent again."""

    def __init__(
        self, method: Method, request: Request, messages: Iterable[Any], options: CallOptions
    ) -> None:
        self._requests = RequestStream(messages, method.request_serializer)
        super().__init__(method, request, options)

    @property
    def can_replay(self) -> bool:
        """Whether it could be sent again, with all its messages."""
        return self._is_replayable and self._requests.can_replay

    def _detach(self) -> None:
        self._requests.detach()

    def _is_callers_fault(self) -> bool:
        return self._requests.has_failed


class _StreamResponse(AnyCall):
    """Receive a stream of messages, by iterating over the call."""

    is_weak = True
    _is_reading = False
    """Whether somebody waits for the first message, and so finds out whether there is one."""
    _unread: Sending | None = None
    """An attempt that has ended while somebody was."""

    def __del__(self) -> None:
        # Nobody reads it any more.  Whatever thread collects it, in the middle of whatever, it is
        # ended by another.
        if not getattr(self, "_is_over", True) and not sys.is_finalizing():
            self._service.background.soon(self._give_up, _DROPPED)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            sending = self._wait_for_sent()
            if sending is None:
                raise self._failure() or StopIteration
            try:
                return self._read(sending) if self._is_replayable else next(sending.inner)
            except (StopIteration, grpc.RpcError):
                # gRPC says so here before it does in the callback, which decides what follows.
                self._wait_for(lambda: self._is_over or self._sent is not sending)  # noqa: B023 -- called now
                if self._sent is sending:
                    raise (self._failure() or StopIteration) from None
                # The attempt failed, and is made again.

    def _read(self, sending: Sent) -> Any:
        """Read what may be the first message: with it the call is not sent again.

        The end of the call may arrive right behind it, in a thread of gRPC's, which does not know
        of the message yet.  So while this waits, it is this thread that deals with the end.
        """
        is_read = False
        with self._service.lock:
            self._is_reading = True
        try:
            message = next(sending.inner)
            is_read = True
        finally:
            with self._service.lock:
                self._is_reading = False
                if is_read:
                    self._is_replayable = False
                unread, self._unread = self._unread, None
            if is_read:
                self._commit()
            if unread is not None:
                self.attempt_ended(unread, unread.inner)
        return message

    def _leave_to_reader(self, sending: Sending) -> bool:
        if self._is_reading:
            self._unread = sending
        return self._is_reading

    def next(self) -> Any:
        """Return the next message, as gRPC's own iterators offer it."""
        return self.__next__()

    def _commit(self) -> None:
        """Learn that it will not be sent again."""


@final
class UnaryUnaryFuture(_UnaryRequest):
    """Be a call with one message each way."""

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection).future(self._message, **options)


@final
class StreamUnaryFuture(_StreamRequest):
    """Be a call with a stream there and one message back."""

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection).future(self._requests.open(), **options)


@final
class UnaryStreamCall(_UnaryRequest, _StreamResponse):
    """Be a call with one message there and a stream back."""

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection)(self._message, **options)


@final
class StreamStreamCall(_StreamRequest, _StreamResponse):
    """Be a call with a stream each way."""

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection)(self._requests.open(), **options)

    def _commit(self) -> None:
        self._requests.commit()
