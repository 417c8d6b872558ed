"""Keep a user's interceptors away from what evenly itself asks over the same connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import grpc.aio

from evenly.grpc.common.question import Question

__all__ = ["apart", "check_interceptors"]

_KINDS = (
    grpc.aio.UnaryUnaryClientInterceptor,
    grpc.aio.UnaryStreamClientInterceptor,
    grpc.aio.StreamUnaryClientInterceptor,
    grpc.aio.StreamStreamClientInterceptor,
)


def check_interceptors(interceptors: Sequence[grpc.aio.ClientInterceptor] | None) -> None:
    """Raise what gRPC's own channel would, where one is no interceptor."""
    for one in interceptors or ():
        if not isinstance(one, _KINDS):
            kinds = " or ".join(kind.__name__ for kind in _KINDS)
            raise ValueError(f"Interceptor {one!r} must be {kinds}. ")


def apart(
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None,
) -> Sequence[grpc.aio.ClientInterceptor] | None:
    """Return interceptors that see all calls but our own."""
    return None if interceptors is None else [_apart(one) for one in interceptors]


def _apart(interceptor: grpc.aio.ClientInterceptor) -> grpc.aio.ClientInterceptor:
    # In gRPC's order: one that is of several kinds is used as the first of them.
    if isinstance(interceptor, grpc.aio.UnaryUnaryClientInterceptor):
        return _UnaryUnary(interceptor.intercept_unary_unary)
    if isinstance(interceptor, grpc.aio.UnaryStreamClientInterceptor):
        return _UnaryStream(interceptor.intercept_unary_stream)
    return interceptor  # Our questions are single messages.


@final
class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, intercept: Callable[..., Any]) -> None:
        self._intercept = intercept

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Pass our own question on, and show all else."""
        if type(request) is Question:
            return await continuation(client_call_details, request)
        return await self._intercept(continuation, client_call_details, request)


@final
class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, intercept: Callable[..., Any]) -> None:
        self._intercept = intercept

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Pass our own question on, and show all else."""
        if type(request) is Question:
            return await continuation(client_call_details, request)
        return await self._intercept(continuation, client_call_details, request)
