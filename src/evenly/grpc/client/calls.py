"""The four kinds of call, as gRPC's users know them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable
from typing import TYPE_CHECKING, Any, final

import grpc
import grpc.aio

from evenly.core.request import Outcome, Request
from evenly.grpc.client.call import AnyCall, Given
from evenly.grpc.client.connection import Connection
from evenly.grpc.client.refusal import Nowhere
from evenly.grpc.client.request_stream import RequestStream

if TYPE_CHECKING:
    from evenly.grpc.client.multicallable import Method
    from evenly.grpc.client.service import Service

__all__ = ["StreamStreamCall", "StreamUnaryCall", "UnaryStreamCall", "UnaryUnaryCall"]

_EOF = grpc.aio.EOF
_OK = grpc.StatusCode.OK
_DROPPED = "Cancelled upon garbage collection!"
_FINISHED = "RPC already finished."
_HALF_CLOSED = 'RPC is half closed after calling "done_writing".'
_MIXED = "The iterator and read/write APIs may not be mixed on a single RPC."


class _UnaryRequest(AnyCall):
    """Send one message, which is there to be sent again."""

    def __init__(  # noqa: PLR0917 -- by position, which is faster
        self,
        method: Method,
        service: Service,
        request: Request,
        message: object,
        given: Given,
        is_patient: bool,
    ) -> None:
        self._message = message
        super().__init__(method, service, request, given, is_patient)

    def _open(self, connection: Connection | Nowhere, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection)(self._message, **options)


class _StreamRequest(AnyCall):
    """Send a stream of messages, kept for a while to be sent again."""

    sends_stream = True
    _is_replayable = True

    def __init__(  # noqa: PLR0917 -- by position, which is faster
        self,
        method: Method,
        service: Service,
        request: Request,
        messages: AsyncIterable[Any] | Iterable[Any] | None,
        given: Given,
        is_patient: bool,
    ) -> None:
        self._requests = RequestStream(
            messages, method.request_serializer, is_kept=method.keeps_requests
        )
        super().__init__(method, service, request, given, is_patient)

    def _open(self, connection: Connection | Nowhere, options: dict[str, Any]) -> Any:
        return self._method.callable_on(connection)(self._requests.open(), **options)

    def _end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        self._requests.close()
        super()._end(code, details)

    @property
    def can_replay(self) -> bool:
        """Whether it could be sent again, with all its messages."""
        return self._is_replayable and self._requests.can_replay

    @can_replay.setter
    def can_replay(self, value: bool) -> None:
        self._is_replayable = value
        if not value:
            self._requests.commit()

    async def write(self, message: object) -> None:
        """Send one message; it has been handed to gRPC when this returns."""
        self._check_writing()
        if self._is_over:
            self._raise_own()
            raise asyncio.InvalidStateError(_FINISHED)
        if self._requests.is_done_writing:
            raise asyncio.InvalidStateError(_HALF_CLOSED)
        try:
            await self._requests.write(message)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.done():
            self._raise_for_status()

    async def done_writing(self) -> None:
        """Say that no message follows; a second time does nothing."""
        self._check_writing()
        self._requests.done_writing()

    def _check_writing(self) -> None:
        if not self._requests.is_written:
            raise grpc.aio.UsageError(_MIXED)

    def _raise_own(self) -> None:
        """Raise what no status of gRPC's tells: a refusal of ours, an interceptor's exception."""
        if self.raised is not None:
            raise self.raised
        if not self.is_given_up:
            self._raise_status()

    def _raise_for_status(self) -> None:
        self._raise_own()
        self._raise_status()
        if self._outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError
        if self.seen is not None and self.seen.code() is not _OK:
            raise self.translated(self.seen)


class _UnaryResponse(AnyCall):
    """Receive one message, by awaiting the call."""

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            while True:
                inner = self._inner
                if inner is None:
                    inner = yield from self._sent().__await__()
                    if inner is None:
                        self._raise_status()
                try:
                    return (yield from inner.__await__())
                except grpc.aio.AioRpcError as error:
                    yield from self._settled(inner).__await__()
                    # If it is another one now, the attempt failed and was made again.
                    if inner is self._inner:
                        raise self.translated(error) from None
                except Exception:
                    self._refused(inner)
                    raise
        except asyncio.CancelledError:
            self.cancel()
            raise


class _Style(enum.Enum):
    UNKNOWN = enum.auto()
    ITERATOR = enum.auto()
    READER = enum.auto()


class _StreamResponse(AnyCall):
    """Receive a stream of messages, by iterating over the call or by reading from it."""

    is_weak = True
    _style = _Style.UNKNOWN
    _read_from: Any = None
    # Its iterator, because gRPC's `read` gives up what is left to read when a message cannot be
    # sent.
    _messages: Any = None
    _raised: grpc.aio.AioRpcError | None = None

    def __del__(self) -> None:
        # Nobody reads it any more.  Whatever thread collects it, it ends on the loop's.
        service = getattr(self, "_service", None)  # It may never have begun.
        if service is not None and not self._is_over:
            loop = service.runtime.loop
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self.cancel()
        self._end(grpc.StatusCode.CANCELLED, _DROPPED)  # gRPC's call has lost sight of this one.

    def __aiter__(self) -> AsyncIterator[Any]:
        self._use(_Style.ITERATOR)
        return self

    async def __anext__(self) -> Any:
        message = await self._read()
        if message is _EOF:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF` after the last."""
        self._use(_Style.READER)
        return await self._read()

    def _use(self, style: _Style) -> None:
        if self._style is _Style.UNKNOWN:
            self._style = style
        elif self._style is not style:
            raise grpc.aio.UsageError(_MIXED)

    async def _read(self) -> Any:
        try:
            while True:
                inner = self._inner
                if inner is None:
                    inner = await self._sent()
                    if inner is None:
                        self._raise_status()
                message = await self._next(inner)
                # If it is another one now, the attempt failed and was made again.
                if inner is self._inner:
                    return message
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _next(self, inner: Any) -> Any:
        if inner is not self._read_from:
            self._read_from, self._messages, self._raised = inner, aiter(inner), None
        try:
            message = await anext(self._messages)
        except StopAsyncIteration:
            return self._at_end()
        except grpc.aio.AioRpcError as error:
            self._raised = error
            await self._settled(inner)
            return self._at_end() if inner is self._inner else None
        except Exception:
            self._refused(inner)
            raise
        if self.can_replay and inner is self._inner:
            self.can_replay = False
        return message

    def _at_end(self) -> object:
        """Return EOF, or raise what the call failed with, however often that is asked for."""
        is_fine = self.seen is not None and self.seen.code() is _OK
        if self._raised is not None and not is_fine:
            raise self.translated(self._raised) from None
        if self.is_given_up or self._outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError
        return _EOF


@final
class UnaryUnaryCall(_UnaryRequest, _UnaryResponse, grpc.aio.UnaryUnaryCall):
    """Be a call with one message each way."""


@final
class UnaryStreamCall(_UnaryRequest, _StreamResponse, grpc.aio.UnaryStreamCall):
    """Be a call with one message there and a stream back."""


@final
class StreamUnaryCall(_StreamRequest, _UnaryResponse, grpc.aio.StreamUnaryCall):
    """Be a call with a stream there and one message back."""


@final
class StreamStreamCall(_StreamRequest, _StreamResponse, grpc.aio.StreamStreamCall):
    """Be a call with a stream each way."""
