"""What can be asked of a call that its caller does not wait for: a `grpc.Call` and a `grpc.Future`.

What it says changes under the service's lock, and whoever waits is woken then.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import grpc

from evenly.core.request import Outcome, Request
from evenly.grpc.sync.client.errors import Unsent, refused_by_backend
from evenly.grpc.sync.client.service import Service
from evenly.grpc.sync.client.turn import SLICE_SECONDS

__all__ = ["Sent", "Status"]


class Sent(Protocol):
    """Be an attempt that was sent."""

    inner: Any
    """gRPC's own call."""


class Status(grpc.Call, grpc.Future):
    """Know what has become of a call.

    `backend` is the address that served it, or serves it now, and `attempts` how many were made.
    """

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._changed = threading.Condition(service.lock)
        self._sent: Sent | None = None
        """The attempt that was sent, or the last one."""
        self._outcome: Outcome | None = None
        self._unsent: Unsent | None = None
        """How it ended, where gRPC has no call that says so."""
        self._error: Exception | None = None
        self._is_cancelled = False
        self._is_over = False
        self._callbacks: list[Callable[[], None]] = []
        self.backend: str | None = None
        self.attempts = 0

    def is_active(self) -> bool:
        """Return whether it is not over."""
        return not self._is_over

    def running(self) -> bool:
        """Return whether it is not over."""
        return not self._is_over

    def done(self) -> bool:
        """Return whether it is over."""
        return self._is_over

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._is_cancelled

    def time_remaining(self) -> float | None:
        """Return how many seconds are left until the deadline; `None` without one."""
        deadline_at = self._request.deadline_at
        if deadline_at is None:
            return None
        return max(0.0, deadline_at - self._service.background.loop.time())

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call `callback` when it is over; return False if it is."""
        with self._service.lock:
            if self._is_over:
                return False
            self._callbacks.append(callback)
            return True

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call `fn` with this call when it is over; at once if it is."""
        if not self.add_callback(lambda: fn(self)):
            fn(self)

    def initial_metadata(self) -> Any:
        """Wait for what the backend sends first, and return it."""
        while True:
            sending = self._wait_for_sent()
            if sending is None:
                return ()
            metadata = sending.inner.initial_metadata()
            if sending is self._sent:
                return metadata

    def trailing_metadata(self) -> Any:
        """Wait for what the backend sends last, and return it."""
        inner = self._ended()
        return () if inner is None else inner.trailing_metadata()

    def code(self) -> grpc.StatusCode:
        """Wait for the status, and return its code."""
        inner = self._ended()
        return inner.code() if self._unsent is None else self._unsent.code

    def details(self) -> str:
        """Wait for the status, and return what it says."""
        inner = self._ended()
        details: str = inner.details() if self._unsent is None else self._unsent.details
        return details

    def debug_error_string(self) -> str:
        """Wait for the status, and return what gRPC says about an error."""
        inner = self._ended()
        explained: str = "" if inner is None else inner.debug_error_string()
        return explained

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the response, and return it or raise what went wrong."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._ended().result()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the end, and return what went wrong, or `None`."""
        if not self._wait_for(lambda: self._is_over, timeout):
            raise grpc.FutureTimeoutError
        if self._is_cancelled:
            raise grpc.FutureCancelledError
        return self._failure()

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Wait for the end, and return where what went wrong was raised."""
        error = self.exception(timeout)
        if error is None:
            return None
        try:
            raise error
        except Exception as raised:  # noqa: BLE001 -- as gRPC has it
            return raised.__traceback__

    # Waiting for it.

    def _wait_for(self, is_true: Callable[[], object], timeout: float | None = None) -> bool:
        give_up_at = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not is_true():
                left_seconds = give_up_at - time.monotonic()
                if left_seconds <= 0.0:
                    return False
                self._changed.wait(min(SLICE_SECONDS, left_seconds))
        return True

    def _wait_for_sent(self) -> Sent | None:
        """Return the attempt as soon as it was sent; `None` if the call ended without."""
        if self._sent is None:
            self._wait_for(lambda: self._sent is not None or self._is_over)
        return self._sent if self._unsent is None else None

    def _ended(self) -> Any:
        """Return gRPC's call when it is over; `None` if it ended without."""
        self._wait_for(lambda: self._is_over)
        return self._sent.inner if self._unsent is None and self._sent is not None else None

    def _failure(self) -> Exception | None:
        """Return what to raise for a call that is over; `None` if it went well."""
        if self._error is not None:
            return self._error
        if self._unsent is not None:
            error = self._unsent.error()
        else:
            inner = self._ended()
            if inner.code() is grpc.StatusCode.OK:
                return None
            error = refused_by_backend(inner, self._outcome)
        error.backend = self.backend
        error.attempts = self.attempts
        return error
