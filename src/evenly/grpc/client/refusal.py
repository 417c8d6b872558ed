# ruff: noqa: ARG002 -- the signatures are gRPC's
"""Calls that are refused in this process, as a user's interceptors see them: as calls that failed.

They run around a gRPC channel that goes nowhere.  Behind the last of them stands one of ours, which
never passes a call on, but returns one that has ended with the refusal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, final

import grpc
import grpc.aio

from evenly.grpc.common.connections import State

__all__ = ["REFUSAL", "Nowhere"]

Refusal = Callable[[], grpc.aio.AioRpcError]

REFUSAL: ContextVar[Refusal] = ContextVar("REFUSAL")
"""Makes what the call that is begun in this context is to raise."""


@final
class Nowhere:
    """Be in place of a connection, for calls that have none."""

    state = State.READY

    def __init__(self, interceptors: Sequence[grpc.aio.ClientInterceptor]) -> None:
        ours = (_UnaryUnary(), _UnaryStream(), _StreamUnary(), _StreamStream())
        # It never connects, because nothing gets past ours.
        self.channel = grpc.aio.insecure_channel(
            "ipv4:127.0.0.1:1", interceptors=(*interceptors, *ours)
        )


class _Refused:
    """Have ended with a refusal."""

    def __init__(self) -> None:
        self._refusal = REFUSAL.get()

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def time_remaining(self) -> float | None:
        return None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def code(self) -> grpc.StatusCode:
        return self._refusal().code()

    async def details(self) -> str:
        return self._refusal().details() or ""

    async def debug_error_string(self) -> str:
        return ""

    async def wait_for_connection(self) -> None:
        raise self._refusal()

    # Whichever of these its kind has.

    def __await__(self) -> Generator[Any, None, Any]:
        raise self._refusal()
        yield  # type: ignore[unreachable]

    async def __aiter__(self) -> AsyncIterator[Any]:
        raise self._refusal()
        yield  # type: ignore[unreachable]

    async def read(self) -> Any:
        raise self._refusal()

    async def write(self, message: object) -> None:
        raise self._refusal()

    async def done_writing(self) -> None:
        return


class _UnaryUnaryCall(_Refused, grpc.aio.UnaryUnaryCall):
    pass


class _UnaryStreamCall(_Refused, grpc.aio.UnaryStreamCall):
    pass


class _StreamUnaryCall(_Refused, grpc.aio.StreamUnaryCall):
    pass


class _StreamStreamCall(_Refused, grpc.aio.StreamStreamCall):
    pass


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return _UnaryUnaryCall()


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return _UnaryStreamCall()


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return _StreamUnaryCall()


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return _StreamStreamCall()
