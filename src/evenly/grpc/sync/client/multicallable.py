"""What a stub calls, in threads: gRPC's own four signatures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from evenly.grpc.sync.client.calls import (
    StreamStreamCall,
    StreamUnaryFuture,
    UnaryStreamCall,
    UnaryUnaryFuture,
)
from evenly.grpc.sync.client.method import CallOptions, Method
from evenly.grpc.sync.client.request_stream import RequestStream

__all__ = ["StreamStream", "StreamUnary", "UnaryStream", "UnaryUnary"]


class UnaryUnary(Method, grpc.UnaryUnaryMultiCallable):
    """Call with one message each way."""

    kind = "unary_unary"

    def __call__(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """Call, wait, and return the response."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return self.wait_for_response(self.serialized(request), self.request(timeout), options)[0]

    def with_call(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, grpc.Call]:
        """Call, wait, and return the response and the call."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return self.wait_for_response(self.serialized(request), self.request(timeout), options)

    def future(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> UnaryUnaryFuture:
        """Call, and return what will have the response."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return UnaryUnaryFuture(self, self.request(timeout), self.serialized(request), options)


class UnaryStream(Method, grpc.UnaryStreamMultiCallable):
    """Call with one message there and a stream back."""

    kind = "unary_stream"

    def __call__(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> UnaryStreamCall:
        """Call, and return an iterator over the responses."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return UnaryStreamCall(self, self.request(timeout), self.serialized(request), options)


class StreamUnary(Method, grpc.StreamUnaryMultiCallable):
    """Call with a stream there and one message back."""

    kind = "stream_unary"

    def __call__(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """Call, wait, and return the response."""
        return self.with_call(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )[0]

    def with_call(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, grpc.Call]:
        """Call, wait, and return the response and the call."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        stream = RequestStream(request_iterator, self.request_serializer)
        try:
            return self.wait_for_response(stream, self.request(timeout), options)
        finally:
            stream.detach()

    def future(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> StreamUnaryFuture:
        """Call, and return what will have the response."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return StreamUnaryFuture(self, self.request(timeout), request_iterator, options)


class StreamStream(Method, grpc.StreamStreamMultiCallable):
    """Call with a stream each way."""

    kind = "stream_stream"

    def __call__(  # noqa: PLR0917 -- gRPC's own signature
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> StreamStreamCall:
        """Call, and return an iterator over the responses."""
        options = CallOptions(metadata, credentials, wait_for_ready, compression)
        return StreamStreamCall(self, self.request(timeout), request_iterator, options)
