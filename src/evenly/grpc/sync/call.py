"""A call that its caller does not wait for: a future, or a stream of responses.

An attempt ends in gRPC's done-callback, in a thread of gRPC's, which settles it with the core and,
where the core allows, begins the next; so counts are right whether or not anyone looks at the call.
What is said of it here changes under the service's lock, and gRPC is never called while that is
held.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import grpc

from evenly.core.attempt import Attempt
from evenly.core.request import Next, Outcome, Request
from evenly.grpc.sync.connection import Connection
from evenly.grpc.sync.errors import CANCELLED, Unsent, refused_by_backend
from evenly.grpc.sync.turn import SLICE_SECONDS, Placed, Turn

if TYPE_CHECKING:
    from evenly.grpc.sync.method import CallOptions, Method

__all__ = ["AnyCall", "Sending"]

_LOGGER = logging.getLogger("evenly.grpc")
_REFUSED = "evenly: gRPC refused the call (local)"


@final
class Sending:
    """Settle one attempt, once, when gRPC's call has ended or was given up.

    gRPC holds it until then.  So it holds a call whose response is a stream only weakly: a stream
    that nobody reads any more must be able to go, and that ends its attempt.
    """

    __slots__ = ("_call", "_weak_call", "attempt", "connection", "inner", "is_settled")

    def __init__(self, call: AnyCall, attempt: Attempt, connection: Connection) -> None:
        self.attempt = attempt
        self.connection = connection
        self.inner: Any = None
        self.is_settled = False
        self._call = None if call.is_weak else call
        self._weak_call = weakref.ref(call) if call.is_weak else None

    def ended(self, inner: Any) -> None:  # noqa: ANN401 -- any of gRPC's calls
        """Learn that gRPC's call has ended, in whatever way."""
        call = self._call if self._weak_call is None else self._weak_call()
        self._call = None  # gRPC's call still holds us, and the call holds it.
        if call is not None and not self.is_settled:
            call.attempt_ended(self, inner)


class AnyCall(grpc.Call, grpc.Future):
    """Be what futures and streams have in common.

    `backend` is the address that served it, or serves it now, and `attempts` how many were made.
    """

    is_weak = False
    """Whether gRPC's call must not keep this one alive."""

    def __init__(self, method: Method, request: Request, options: CallOptions) -> None:
        self._method = method
        self._service = service = method.channel.start()
        self._request = request
        self._options = options
        # An attempt may be sent later and from elsewhere; what runs in it belongs to the caller.
        self._context = copy_context()
        self._changed = threading.Condition(service.lock)
        self._sending: Sending | None = None
        """The attempt that was sent, or the last one."""
        self._failed: Sending | None = None
        """The one before, which counts if the next cannot be sent."""
        self._turn: Turn | None = None
        self._outcome: Outcome | None = None
        self._unsent: Unsent | None = None
        """How it ended, where gRPC has no call that says so."""
        self._error: Exception | None = None
        self._is_cancelled = False
        self._is_over = False
        self._callbacks: list[Callable[[], None]] = []
        self.backend: str | None = None
        self.attempts = 0
        self._is_replayable = True
        method.channel.call_begun(self)
        try:
            self._take(service.begin(request, is_patient=options.is_patient, on_done=self._later()))
        except ValueError:  # closed
            self._is_over = True
            raise
        if self._error is not None:
            raise self._error

    # What a user can ask and do, of a `grpc.Call` and a `grpc.Future`.

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

    def cancel(self) -> bool:
        """Give the call up; return False if it was over."""
        return self._give_up(CANCELLED)

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

    def initial_metadata(self) -> Any:  # noqa: ANN401 -- gRPC's
        """Wait for what the backend sends first, and return it."""
        while True:
            sending = self._sent()
            if sending is None:
                return ()
            metadata = sending.inner.initial_metadata()
            if sending is self._sending:
                return metadata

    def trailing_metadata(self) -> Any:  # noqa: ANN401 -- gRPC's
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

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 -- whatever the stub returns
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

    # The life of an attempt.

    @property
    def can_replay(self) -> bool:
        """Whether it could be sent again: the caller has seen nothing of an answer."""
        return self._is_replayable

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:  # noqa: ANN401
        """Begin gRPC's own call on a connection."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Let go of what belongs to an attempt that is over."""

    def _later(self) -> Callable[[Placed | Unsent], None]:
        """Return what goes on when a connection was found; it holds a stream weakly."""
        if not self.is_weak:
            return self._take
        weak_take = weakref.WeakMethod(self._take)
        abandon = self._service.abandon

        def take(answer: Placed | Unsent) -> None:
            take = weak_take()
            if take is not None:
                take(answer)
            elif isinstance(answer, tuple):
                abandon(*answer)

        return take

    def _take(self, answer: Placed | Unsent | Turn) -> None:
        """Send on the connection that was found; any thread."""
        if isinstance(answer, Turn):
            with self._service.lock:
                is_over = self._is_over
                self._turn = answer
            if is_over:
                answer.cancel()
        elif isinstance(answer, Unsent):
            if self._failed is not None:  # An attempt was made: its failure stands.
                self._sending = self._failed
                self._end(None)
            else:
                self._end(answer)
        else:
            self._send(*answer)

    def _send(self, attempt: Attempt, connection: Connection) -> None:
        if self.done():  # It was cancelled meanwhile.
            self._service.abandon(attempt, connection)
            return
        sending = Sending(self, attempt, connection)
        options = self._options.of(self._request, attempt)
        try:
            sending.inner = inner = self._context.run(self._open, connection, options)
        except Exception as error:  # noqa: BLE001 -- it is the caller's mistake, and raised there
            self._error = error
            self._service.abandon(attempt, connection)
            self._end(Unsent(grpc.StatusCode.INTERNAL, _REFUSED))
            return
        with self._service.lock:
            self._turn = None
            self._sending = sending
            self.backend = connection.backend.address
            self.attempts += 1
            is_over = self._is_over
            self._changed.notify_all()
        if is_over:  # It was cancelled in this instant.
            self._drop(sending)
        inner.add_done_callback(sending.ended)

    def attempt_ended(self, sending: Sending, inner: Any) -> None:  # noqa: ANN401 -- gRPC's call
        """Learn, in a thread of gRPC's, that the call of an attempt has ended."""
        code = inner.code()
        trailers = inner.trailing_metadata()
        details = inner.details()
        with self._service.lock:
            if sending.is_settled or self._leave_to_reader(sending):
                return
            sending.is_settled = True
            self._outcome, verdict = self._service.settle(
                sending.attempt,
                sending.connection,
                code,
                trailers,
                details,
                is_final=not self.can_replay,
                is_cancelled=self._is_callers_fault(),
            )
            if verdict is Next.RETRY:
                self._failed, self._sending = sending, None
        if verdict is not Next.RETRY:
            self._end(None)
            return
        self._detach()
        self._take(self._service.begin(self._request, sending.attempt, on_done=self._later()))

    def _leave_to_reader(self, sending: Sending) -> bool:  # noqa: ARG002 -- see streams
        return False

    def _is_callers_fault(self) -> bool:
        return False

    def _give_up(self, status: Unsent) -> bool:
        with self._service.lock:
            if self._is_over:
                return False
            self._is_cancelled = True
            turn, sending = self._turn, self._sending
        # In another thread: whoever cancels may hold a lock that a callback takes.
        self._end(status, in_thread=True)
        if turn is not None:
            turn.cancel()
        if sending is not None:
            self._drop(sending)
        return True

    def _drop(self, sending: Sending) -> None:
        with self._service.lock:
            is_settled, sending.is_settled = sending.is_settled, True
        if not is_settled:
            self._service.abandon(sending.attempt, sending.connection)
        sending.inner.cancel()

    def _end(self, unsent: Unsent | None, *, in_thread: bool = False) -> None:
        with self._service.lock:
            if self._is_over:
                return
            self._is_over = True
            self._turn = None
            self._unsent = unsent
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        self._detach()
        self._method.channel.call_ended(self)
        if not callbacks:
            return
        if in_thread or self._service.background.is_here:
            # A callback may well wait for another call, which the loop's thread has to bring about.
            threading.Thread(target=_call_all, args=(callbacks,), daemon=True).start()
        else:
            _call_all(callbacks)

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

    def _sent(self) -> Sending | None:
        """Return the attempt as soon as it was sent; `None` if the call ended without."""
        self._wait_for(lambda: self._sending is not None or self._is_over)
        return self._sending if self._unsent is None else None

    def _ended(self) -> Any:  # noqa: ANN401 -- any of gRPC's calls
        """Return gRPC's call when it is over; `None` if it ended without."""
        self._wait_for(lambda: self._is_over)
        return self._sending.inner if self._unsent is None and self._sending is not None else None

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


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # As gRPC does: one that raises must not keep the others from hearing.
            _LOGGER.exception("a callback of a call raised")
