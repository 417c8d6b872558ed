"""One method of a service, called through one channel; and how to wait for its response.

A caller that waits does so in gRPC's own blocking call, in its own thread: around it are two short
stays in the service's lock, and no other thread has a part in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import grpc

from evenly.context import outgoing_request
from evenly.core.attempt import Attempt
from evenly.core.exchange import Exchange
from evenly.core.request import Outcome, Request
from evenly.grpc.common.translation import options_of
from evenly.grpc.sync.client.connection import Connection
from evenly.grpc.sync.client.errors import FailedCall, refused_by_backend
from evenly.grpc.sync.client.request_stream import RequestStream
from evenly.grpc.sync.client.turn import Placed, Turn

if TYPE_CHECKING:
    from evenly.grpc.sync.client.channel import Channel
    from evenly.grpc.sync.client.service import Service

__all__ = ["CallOptions", "Method"]

_LOGGER = logging.getLogger("evenly.grpc")
_OK: Final = grpc.StatusCode.OK
_UNSERIALIZED: Final = "Exception serializing request!"


@final
class CallOptions:
    """Hold what a caller says about one call besides its message."""

    __slots__ = ("_compression", "_credentials", "_metadata", "is_patient")

    def __init__(
        self,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> None:
        # It may be an iterator, and there may be other attempts.
        self._metadata = None if metadata is None else tuple(metadata)
        self._credentials = credentials
        self._compression = compression
        self.is_patient = bool(wait_for_ready)

    def of(self, attempt: Attempt) -> dict[str, Any]:
        """Return what to tell gRPC about an attempt."""
        given = (self._metadata, self._credentials, self._compression)
        now = time.monotonic()
        return options_of(attempt.request, attempt.number, now, *given, attempt.line)


class Method:
    """Be one method of a service, to be called through one channel."""

    kind: str
    """The name of gRPC's own factory, on a channel to one backend."""

    def __init__(
        self,
        channel: Channel,
        name: str,
        request_serializer: Callable[[Any], bytes] | None,
        response_deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.channel = channel
        self.request_serializer = request_serializer
        self._name = name
        self._response_deserializer = response_deserializer
        self._is_idempotent = channel.config.is_idempotent(name)

    def callable_on(self, connection: Connection) -> Any:
        """Return gRPC's own multi-callable for this method on a connection, made once."""
        found = connection.callables.get(self)
        if found is None:
            # Messages are serialized here already: once, however many attempts there are.
            make = getattr(connection.channel, self.kind)
            found = make(self._name, None, self._response_deserializer)
            connection.callables[self] = found
        return found

    def request(self, timeout: float | None) -> Request:
        """Return what the core is to know of a call that is made here and now."""
        return outgoing_request(time.monotonic(), timeout, idempotent=self._is_idempotent)

    def serialized(self, message: Any) -> bytes:
        """Return a message as it is sent."""
        if self.request_serializer is None:
            return message  # type: ignore[no-any-return]
        try:
            return self.request_serializer(message)
        except Exception as error:
            _LOGGER.exception(_UNSERIALIZED)  # As gRPC has it.
            raise FailedCall(grpc.StatusCode.INTERNAL, _UNSERIALIZED) from error

    def wait_for_response(
        self,
        message: bytes | RequestStream,
        request: Request,
        options: CallOptions,
    ) -> tuple[Any, Any]:
        """Call, and return the response and gRPC's call; or raise what went wrong."""
        service = self.channel.start()
        exchange = Exchange(service.runtime.requests, request, options.is_patient)
        try:
            return self._sent(message, service, exchange, options)
        except BaseException:  # Such as a KeyboardInterrupt.
            service.abandon(exchange)
            raise

    def _sent(
        self,
        message: bytes | RequestStream,
        service: Service,
        exchange: Exchange,
        options: CallOptions,
    ) -> tuple[Any, Any]:
        stream = message if isinstance(message, RequestStream) else None
        error: Any = None
        """Of the last attempt that was sent and failed: it stands where no other is sent."""
        found = service.begin(exchange)
        while True:
            placed = found.wait() if isinstance(found, Turn) else found
            if not isinstance(placed, tuple):
                raise error if placed is None else placed.error()
            sent = message if stream is None else stream.open()
            response, inner, failure = self._attempted(sent, placed, options)
            if failure is None:
                service.settle(exchange, placed, _OK, inner.trailing_metadata())
                return response, _described(inner, placed[0])
            if stream is not None:
                stream.detach()
            outcome, found = service.settle(
                exchange,
                placed,
                failure.code(),
                failure.trailing_metadata(),
                failure.details(),
                is_final=stream is not None and not stream.can_replay,
                is_cancelled=stream is not None and stream.has_failed,
            )
            if outcome is not Outcome.NOT_SENT:
                error = _described(refused_by_backend(failure, outcome), placed[0])

    def _attempted(self, sent: Any, placed: Placed, options: CallOptions) -> tuple[Any, Any, Any]:
        """Call once, and return the response and gRPC's call, and how it failed if it did."""
        attempt, connection = placed
        try:
            call = self.callable_on(connection).with_call
            response, inner = call(sent, **options.of(attempt))
        except grpc.RpcError as error:
            failure: Any = error
            connection.wait_for_goaway(failure.details(), attempt.request.deadline_at)
            return None, None, failure
        return response, inner, None


def _described(call: Any, attempt: Attempt) -> Any:
    """Say in a call that is over who served it, and how often it was sent."""
    call.backend = attempt.backend.address
    call.attempts = attempt.number
    return call
