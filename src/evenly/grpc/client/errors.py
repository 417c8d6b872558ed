"""What a refused call raises: gRPC's own error and ours in one.

`except grpc.aio.AioRpcError` and `except evenly.RejectedError` both catch it.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from evenly.core.request import Outcome, Reason, Rejection
from evenly.errors import NoBackend, Overloaded, QuotaExceeded, RejectedError, Throttled

__all__ = [
    "NoBackendRpcError",
    "OverloadedRpcError",
    "QuotaExceededRpcError",
    "RejectedRpcError",
    "ThrottledRpcError",
    "refused_by_backend",
    "refused_here",
]


class RejectedRpcError(grpc.aio.AioRpcError, RejectedError):
    """Report a refused call, as gRPC would and as evenly does."""

    def __init__(
        self,
        code: grpc.StatusCode,
        initial_metadata: grpc.aio.Metadata | None = None,
        trailing_metadata: grpc.aio.Metadata | None = None,
        details: str | None = None,
        debug_error_string: str | None = None,
        *,
        retryable: bool = False,
    ) -> None:
        grpc.aio.AioRpcError.__init__(
            self, code, initial_metadata, trailing_metadata, details, debug_error_string
        )
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__()[:2], {"retryable": self.retryable})


class ThrottledRpcError(RejectedRpcError, Throttled):
    """Report that this client task throttles itself: nothing was sent."""


class NoBackendRpcError(RejectedRpcError, NoBackend):
    """Report that there was no backend to send to: nothing was sent."""


class OverloadedRpcError(RejectedRpcError, Overloaded):
    """Report that a backend refused for overload."""


class QuotaExceededRpcError(RejectedRpcError, QuotaExceeded):
    """Report that a backend refused because the customer is out of quota."""


def refused_here(rejection: Rejection, code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return what to raise for a request that never left this process."""
    empty = grpc.aio.Metadata()
    match rejection.reason:
        case Reason.EXPIRED:
            return grpc.aio.AioRpcError(code, empty, empty, details)
        case Reason.THROTTLED:
            return ThrottledRpcError(code, empty, empty, details, retryable=rejection.retryable)
        case _:
            return NoBackendRpcError(code, empty, empty, details, retryable=rejection.retryable)


def refused_by_backend(
    error: grpc.aio.AioRpcError, outcome: Outcome | None
) -> grpc.aio.AioRpcError:
    """Return what to raise for a call that failed so: a rejection as one of ours."""
    kind: type[RejectedRpcError]
    if outcome is Outcome.OVERLOADED or outcome is Outcome.DONT_RETRY:
        kind = OverloadedRpcError
    elif outcome is Outcome.OUT_OF_QUOTA:
        kind = QuotaExceededRpcError
    else:
        return error
    return kind(
        error.code(),
        error.initial_metadata(),
        error.trailing_metadata(),
        error.details(),
        error.debug_error_string(),
        retryable=outcome is Outcome.OVERLOADED,
    )
