"""What a failed call raises in threads: gRPC's own error, and ours in one where it was refused.

`except grpc.RpcError` and `except evenly.RejectedError` both catch a refusal, and what they catch
is a `grpc.Call` too, as gRPC's users expect of its errors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, final

import grpc

from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import NoBackend, Overloaded, QuotaExceeded, RejectedError, Throttled
from evenly.grpc.common.translation import local_status

__all__ = [
    "CANCELLED",
    "CLOSED",
    "FORKED",
    "FailedCall",
    "NoBackendRpcError",
    "OverloadedRpcError",
    "QuotaExceededRpcError",
    "RejectedRpcError",
    "ThrottledRpcError",
    "Unsent",
    "refused_by_backend",
]

Metadata = tuple[tuple[str, str | bytes], ...]
_Code = grpc.StatusCode


class FailedCall(grpc.RpcError, grpc.Call, grpc.Future):
    """Report a call that has failed; be that call, as gRPC's own errors are."""

    backend: str | None = None
    """The address of the backend that it was sent to last; `None` if it was not sent."""
    attempts: int = 0

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        initial_metadata: Metadata = (),
        trailing_metadata: Metadata = (),
        debug_error_string: str = "",
    ) -> None:
        # Not `super()`, which may be a `RejectedError`, and takes a message.
        Exception.__init__(
            self, code, details, initial_metadata, trailing_metadata, debug_error_string
        )
        self._code = code
        self._details = details
        self._initial_metadata = initial_metadata
        self._trailing_metadata = trailing_metadata
        self._debug_error_string = debug_error_string

    def __reduce__(self) -> tuple[Any, ...]:
        # Entries of metadata have a type of gRPC's that cannot be pickled.
        code, details, *metadata, explained = self.args
        plain = (tuple(map(tuple, entries)) for entries in metadata)
        described = {
            name: getattr(self, name)
            for name in ("backend", "attempts", "retryable")
            if hasattr(self, name)
        }
        return type(self), (code, details, *plain, explained), described

    def __str__(self) -> str:
        return f"<{type(self).__name__} {self._code.name}: {self._details}>"

    __repr__ = __str__

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return what the status says."""
        return self._details

    def initial_metadata(self) -> Metadata:
        """Return what the backend sent first."""
        return self._initial_metadata

    def trailing_metadata(self) -> Metadata:
        """Return what the backend sent last."""
        return self._trailing_metadata

    def debug_error_string(self) -> str:
        """Return what gRPC says about the error."""
        return self._debug_error_string

    def is_active(self) -> Literal[False]:
        """Return False: it is over."""
        return False

    def time_remaining(self) -> None:
        """Return `None`: it is over."""

    def add_callback(self, callback: Callable[[], None]) -> Literal[False]:  # noqa: ARG002 -- gRPC's
        """Return False: it is over."""
        return False

    def cancel(self) -> Literal[False]:
        """Return False: it is over."""
        return False

    def cancelled(self) -> bool:
        """Return whether this side gave up."""
        return False

    def running(self) -> Literal[False]:
        """Return False: it is over."""
        return False

    def done(self) -> Literal[True]:
        """Return True: it is over."""
        return True

    def result(self, timeout: float | None = None) -> NoReturn:  # noqa: ARG002 -- gRPC's
        """Raise it."""
        raise self

    def exception(self, timeout: float | None = None) -> FailedCall:  # noqa: ARG002 -- gRPC's
        """Return itself."""
        return self

    def traceback(self, timeout: float | None = None) -> TracebackType | None:  # noqa: ARG002 -- too
        """Return where it was raised."""
        raised_at: TracebackType | None = self.__traceback__
        return raised_at

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call `fn` at once."""
        fn(self)


class RejectedRpcError(FailedCall, RejectedError):
    """Report a refused call, as gRPC would and as evenly does."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        initial_metadata: Metadata = (),
        trailing_metadata: Metadata = (),
        debug_error_string: str = "",
        *,
        retryable: bool = False,
    ) -> None:
        FailedCall.__init__(
            self, code, details, initial_metadata, trailing_metadata, debug_error_string
        )
        self.retryable = retryable


class ThrottledRpcError(RejectedRpcError, Throttled):
    """Report that this client task throttles itself: nothing was sent."""


class NoBackendRpcError(RejectedRpcError, NoBackend):
    """Report that there was no backend to send to: nothing was sent."""


class OverloadedRpcError(RejectedRpcError, Overloaded):
    """Report that a backend refused for overload."""


class QuotaExceededRpcError(RejectedRpcError, QuotaExceeded):
    """Report that a backend refused because the customer is out of quota."""


@final
class Unsent:
    """Say how a request ended that was not sent, or of which nothing was heard."""

    __slots__ = ("code", "details", "rejection")

    def __init__(
        self, code: grpc.StatusCode, details: str, rejection: Rejection | None = None
    ) -> None:
        self.code = code
        self.details = details
        self.rejection = rejection

    @classmethod
    def refused(cls, rejection: Rejection, request: Request, target: str) -> Unsent:
        """Return how a request ended that was refused in this process."""
        return cls(*local_status(rejection, request, target), rejection)

    def error(self) -> FailedCall:
        """Return what to raise."""
        rejection = self.rejection
        if rejection is None or rejection.reason is Reason.EXPIRED:
            return FailedCall(self.code, self.details)
        kind = ThrottledRpcError if rejection.reason is Reason.THROTTLED else NoBackendRpcError
        return kind(self.code, self.details, retryable=rejection.retryable)


CANCELLED: Final = Unsent(_Code.CANCELLED, "Locally cancelled by application!")
CLOSED: Final = Unsent(_Code.CANCELLED, "Channel closed!")
FORKED: Final = Unsent(_Code.CANCELLED, "Call cancelled in fork child")


def refused_by_backend(error: Any, outcome: Outcome | None) -> Any:
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
        error.details(),
        tuple(error.initial_metadata() or ()),
        tuple(error.trailing_metadata() or ()),
        error.debug_error_string(),
        retryable=outcome is Outcome.OVERLOADED,
    )
