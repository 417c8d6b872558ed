"""What a `Transport` raises: httpx's own errors, and for what was refused here, ours too.

`except httpx.TransportError` and `except evenly.RejectedError` both catch a refusal.  That a
backend refused is no error to httpx: it is a response with a status of 429 or 503.
"""

from __future__ import annotations

from typing import Final, final

import httpx

from evenly.core.request import Reason, Rejection
from evenly.errors import NoBackend, Throttled
from evenly.http.client.errors import Phase

__all__ = ["NoBackendTransportError", "ThrottledTransportError", "TransportErrors"]


class ThrottledTransportError(httpx.TransportError, Throttled):
    """Report that this client task throttles itself: nothing was sent."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        httpx.TransportError.__init__(self, message)
        self.retryable = retryable


class NoBackendTransportError(httpx.ConnectError, NoBackend):
    """Report that there was no backend to send to: nothing was sent."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        httpx.ConnectError.__init__(self, message)
        self.retryable = retryable


_TIMEOUTS: Final[dict[Phase, type[httpx.TimeoutException]]] = {
    Phase.BACKEND: httpx.PoolTimeout,
    Phase.CONNECT: httpx.ConnectTimeout,
    Phase.WRITE: httpx.WriteTimeout,
    Phase.READ: httpx.ReadTimeout,
}


@final
class TransportErrors:
    """Make httpx's exceptions."""

    def timed_out(self, phase: Phase, message: str) -> Exception:
        """Return what to raise where time was up."""
        return _TIMEOUTS[phase](message)

    def lost(self, message: str, *, is_bad_response: bool, phase: Phase) -> Exception:
        """Return what to raise where a request was sent in vain."""
        if is_bad_response:
            return httpx.RemoteProtocolError(message)
        return httpx.WriteError(message) if phase is Phase.WRITE else httpx.ReadError(message)

    def refused_here(self, rejection: Rejection, message: str) -> Exception:
        """Return what to raise for a request that never left this process."""
        kind: type[ThrottledTransportError | NoBackendTransportError]
        match rejection.reason:
            case Reason.EXPIRED:
                return httpx.PoolTimeout(message)
            case Reason.THROTTLED:
                kind = ThrottledTransportError
            case _:
                kind = NoBackendTransportError
        return kind(message, retryable=rejection.retryable)
