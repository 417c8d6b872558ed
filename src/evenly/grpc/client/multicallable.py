"""What a stub calls: one object per method and channel.

Wrapping these costs a few microseconds a call; a client interceptor would cost 16 to 27.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from evenly.context import outgoing_request
from evenly.grpc.client.call import AnyCall
from evenly.grpc.client.calls import (
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from evenly.grpc.client.connection import Connection
from evenly.grpc.client.refusal import Nowhere
from evenly.grpc.common.connections import State

if TYPE_CHECKING:
    from evenly.grpc.client.channel import Channel

__all__ = ["Method", "StreamStream", "StreamUnary", "UnaryStream", "UnaryUnary"]


class Method:
    """Be one method of a service, to be called through one channel."""

    kind: str
    """The name of gRPC's own factory, on a channel to one backend."""
    call_class: Callable[..., AnyCall]
    sends_stream = False

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
        self._callables: dict[Connection | Nowhere, Any] = {}
        self._is_idempotent = channel.config.is_idempotent(name)
        # Interceptors are to see messages.  Those could change once they were sent, and so cannot
        # be kept.
        self.keeps_requests = self.sends_stream and not channel.has_interceptors

    def begin(  # noqa: PLR0917 -- by position, which is faster
        self,
        message: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """Begin a call."""
        service = self.channel.start()
        request = outgoing_request(time.monotonic(), timeout, idempotent=self._is_idempotent)
        given = (metadata, credentials, compression)
        return self.call_class(self, service, request, message, given, bool(wait_for_ready))

    def callable_on(self, connection: Connection | Nowhere) -> Any:
        """Return gRPC's own multi-callable for this method on a connection, made once."""
        found = self._callables.get(connection)
        if found is None:
            # Kept here and not there, because some make a stub for each call.
            self._callables = {
                known: made
                for known, made in self._callables.items()
                if known.state is not State.GONE
            }
            # A stream of requests is serialized here already, to be kept for another attempt.
            serializer = None if self.keeps_requests else self.request_serializer
            make = getattr(connection.channel, self.kind)
            found = make(self._name, serializer, self._response_deserializer)
            self._callables[connection] = found
        return found


class _UnaryMethod(Method):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """Begin a call with one message."""
        return self.begin(request, timeout, metadata, credentials, wait_for_ready, compression)


class _StreamMethod(Method):
    sends_stream = True

    def __call__(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """Begin a call with a stream of messages."""
        return self.begin(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )


class UnaryUnary(_UnaryMethod, grpc.aio.UnaryUnaryMultiCallable):
    """Call with one message each way."""

    kind = "unary_unary"
    call_class = UnaryUnaryCall


class UnaryStream(_UnaryMethod, grpc.aio.UnaryStreamMultiCallable):
    """Call with one message there and a stream back."""

    kind = "unary_stream"
    call_class = UnaryStreamCall


class StreamUnary(_StreamMethod, grpc.aio.StreamUnaryMultiCallable):
    """Call with a stream there and one message back."""

    kind = "stream_unary"
    call_class = StreamUnaryCall


class StreamStream(_StreamMethod, grpc.aio.StreamStreamMultiCallable):
    """Call with a stream each way."""

    kind = "stream_stream"
    call_class = StreamStreamCall
