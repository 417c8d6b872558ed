"""What a `Session` raises: every one an `HttpError`.

- `ConnectionLost`: the request was sent, and no whole response came back.
- `BodyTooLong`: the body is longer than the session keeps in memory.
- `Timeout`, which is a `TimeoutError` too: the deadline passed.
- `StatusError`: what `raise_for_status` raises.
- What is refused raises HTTP's error and ours in one: `ThrottledHttpError`, `NoBackendHttpError`
  where nothing was sent; `OverloadedHttpError`, `QuotaExceededHttpError`, with the `response`,
  where a backend said no.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, final

from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import (
    EvenlyError,
    NoBackend,
    Overloaded,
    QuotaExceeded,
    RejectedError,
    Throttled,
)
from evenly.wire.metadata import REJECT_KEY

if TYPE_CHECKING:
    from evenly.http.client.response import Response

__all__ = [
    "BodyTooLong",
    "ConnectionLost",
    "Errors",
    "HttpError",
    "NoBackendHttpError",
    "OverloadedHttpError",
    "Phase",
    "QuotaExceededHttpError",
    "RejectedHttpError",
    "SessionErrors",
    "StatusError",
    "ThrottledHttpError",
    "Timeout",
    "local_message",
    "refused_by_backend",
]


class HttpError(EvenlyError):
    """Be the base of what a `Session` raises about a request."""


class ConnectionLost(HttpError):
    """Report that the request was sent and no whole response came back.

    The connection broke, or what came was no HTTP.  The backend may have done the work.
    """


class BodyTooLong(HttpError):
    """Report a body longer than the session's `body_max_bytes`: read it by `stream`, in chunks."""


class Timeout(HttpError, TimeoutError):
    """Report that the deadline passed before the response had ended."""


class StatusError(HttpError):
    """Report a status of 400 and above; `response` has it."""

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response


class RejectedHttpError(HttpError, RejectedError):
    """Report a refused request."""

    def __init__(
        self, message: str = "", *, retryable: bool = False, response: Response | None = None
    ) -> None:
        RejectedError.__init__(self, message, retryable=retryable)
        self.response = response
        """What the backend said; `None` where nothing was sent."""


class ThrottledHttpError(RejectedHttpError, Throttled):
    """Report that this client task throttles itself: nothing was sent."""


class NoBackendHttpError(RejectedHttpError, NoBackend):
    """Report that there was no backend to send to: nothing was sent."""


class OverloadedHttpError(RejectedHttpError, Overloaded):
    """Report that a backend refused for overload."""


class QuotaExceededHttpError(RejectedHttpError, QuotaExceeded):
    """Report that a backend refused because the customer is out of quota."""


@final
class Phase(enum.Enum):
    """Say what a request was waiting for."""

    BACKEND = "a backend"
    CONNECT = "a connection"
    WRITE = "the request to be taken"
    READ = "the response"


class Errors(Protocol):
    """Make the exceptions of one kind of client."""

    def timed_out(self, phase: Phase, message: str) -> Exception:
        """Return what to raise where time was up."""

    def lost(self, message: str, *, is_bad_response: bool, phase: Phase) -> Exception:
        """Return what to raise where a request was sent in vain."""

    def refused_here(self, rejection: Rejection, message: str) -> Exception:
        """Return what to raise for a request that never left this process."""


@final
class SessionErrors:
    """Make those of a `Session`."""

    def timed_out(self, phase: Phase, message: str) -> Exception:  # noqa: ARG002
        """Return what to raise where time was up."""
        return Timeout(message)

    def lost(self, message: str, *, is_bad_response: bool, phase: Phase) -> Exception:  # noqa: ARG002
        """Return what to raise where a request was sent in vain."""
        return ConnectionLost(message)

    def refused_here(self, rejection: Rejection, message: str) -> Exception:
        """Return what to raise for a request that never left this process."""
        match rejection.reason:
            case Reason.EXPIRED:
                return Timeout(message)
            case Reason.THROTTLED:
                return ThrottledHttpError(message, retryable=rejection.retryable)
            case _:
                return NoBackendHttpError(message, retryable=rejection.retryable)


def local_message(rejection: Rejection, request: Request, target: str) -> str:
    """Return what to say of a request that never left this process."""
    return f"{rejection.text}; {target}, {request.criticality.name} (local)"


def refused_by_backend(response: Response, outcome: Outcome | None) -> RejectedHttpError | None:
    """Return what to raise for a refusal by a backend of ours; `None` for all else.

    Of the answers of others, who can tell?  They are for the caller to read.
    """
    if outcome is None or not outcome.is_rejection or REJECT_KEY not in response.headers:
        return None
    message = f"{response.backend} refused: {response.status} {response.reason}"
    if outcome is Outcome.OVERLOADED or outcome is Outcome.DONT_RETRY:
        is_retryable = outcome is Outcome.OVERLOADED
        return OverloadedHttpError(message, retryable=is_retryable, response=response)
    return QuotaExceededHttpError(message, response=response)
