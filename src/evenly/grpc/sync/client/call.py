"""A call that its caller does not wait for: a future, or a stream of responses.

An attempt ends in gRPC's done-callback, in a thread of gRPC's, which settles it with the core and,
where the core allows, begins the next; so counts are right whether or not anyone looks at the call.
gRPC is never called while the service's lock is held.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, final

import grpc

from evenly.core.exchange import Exchange
from evenly.core.request import Outcome, Request
from evenly.grpc.sync.client.connection import Connection
from evenly.grpc.sync.client.errors import CANCELLED, FORKED, Unsent
from evenly.grpc.sync.client.status import Status
from evenly.grpc.sync.client.turn import Placed, Result, Turn

if TYPE_CHECKING:
    from evenly.grpc.sync.client.method import CallOptions, Method

__all__ = ["AnyCall", "Sending"]

_LOGGER = logging.getLogger("evenly.grpc")
_REFUSED = "evenly: gRPC refused the call (local)"


@final
class Sending:
    """Have one attempt settled when gRPC's call has ended.

    gRPC holds it until then.  So it holds a call whose response is a stream only weakly: a stream
    that nobody reads any more must be able to go, and that ends its attempt.
    """

    __slots__ = ("_call", "_weak_call", "inner", "placed")

    def __init__(self, call: AnyCall, placed: Placed) -> None:
        self.placed = placed
        self.inner: Any = None
        self._call = None if call.is_weak else call
        self._weak_call = weakref.ref(call) if call.is_weak else None

    def ended(self, inner: Any) -> None:
        """Learn that gRPC's call has ended, in whatever way."""
        call = self._call if self._weak_call is None else self._weak_call()
        self._call = None  # gRPC's call still holds us, and the call holds it.
        if call is not None:
            call.attempt_ended(self, inner)


class AnyCall(Status):
    """Be what futures and streams have in common: one or more attempts, each a call of gRPC's."""

    is_weak = False
    """Whether gRPC's call must not keep this one alive."""
    _sent: Sending | None

    def __init__(self, method: Method, request: Request, options: CallOptions) -> None:
        service = method.channel.start()
        super().__init__(service, request)
        self._method = method
        self._options = options
        # An attempt may be sent later and from elsewhere; what runs in it belongs to the caller.
        self._context = copy_context()
        self._settled: Sending | None = None
        """The last attempt that was sent and has ended: it stands where no other is sent."""
        self._is_replayable = True
        self._exchange = exchange = Exchange(service.runtime.requests, request, options.is_patient)
        method.channel.call_begun(self)
        try:
            self._take(service.begin(exchange, self._later()))
        except BaseException:  # It is closed, or a KeyboardInterrupt: nobody will have this call.
            self._give_up(CANCELLED)
            raise
        if self._error is not None:
            raise self._error

    def cancel(self) -> bool:
        """Give the call up; return False if it was over."""
        return self._give_up(CANCELLED)

    def end_in_child(self) -> None:
        """Be over, in a forked child: the call is its parent's."""
        self._changed = threading.Condition()  # Somebody may have held its lock.
        self._callbacks = []
        self._unsent = FORKED
        self._is_cancelled = True
        self._is_over = True

    # The life of an attempt.

    @property
    def can_replay(self) -> bool:
        """Whether it could be sent again: the caller has seen nothing of an answer."""
        return self._is_replayable

    def _open(self, connection: Connection, options: dict[str, Any]) -> Any:
        """Begin gRPC's own call on a connection."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Let go of what belongs to an attempt that is over."""

    def _later(self) -> Callable[[Result], None]:
        """Return what goes on when a connection was found; it holds a stream weakly."""
        if not self.is_weak:
            return self._take
        weak_take = weakref.WeakMethod(self._take)
        service, exchange = self._service, self._exchange

        def take(result: Result) -> None:
            take = weak_take()
            if take is not None:
                take(result)
            else:
                service.abandon(exchange)

        return take

    def _take(self, found: Result | Turn) -> None:
        """Send on the connection that was found; any thread."""
        if isinstance(found, tuple):
            self._send(found)
        elif not isinstance(found, Turn):
            self._end(found)

    def _send(self, placed: Placed) -> None:
        if self.done():
            return  # It was given up meanwhile, and its attempt with it.
        attempt, connection = placed
        sending = Sending(self, placed)
        before = self.backend, self.attempts
        # Already: the backend may have got it before gRPC returns here.
        self.backend = connection.backend.address
        self.attempts = attempt.number
        try:
            options = self._options.of(attempt)
            sending.inner = inner = self._context.run(self._open, connection, options)
        except Exception as error:  # noqa: BLE001 -- it is the caller's mistake, and raised there
            self.backend, self.attempts = before
            self._error = error
            self._service.abandon(self._exchange)
            self._end(Unsent(grpc.StatusCode.INTERNAL, _REFUSED))
            return
        with self._service.lock:
            self._sent = sending
            is_over = self._is_over
            self._changed.notify_all()
        if is_over:  # It was given up in this instant.
            inner.cancel()
        inner.add_done_callback(sending.ended)

    def attempt_ended(self, sending: Sending, inner: Any) -> None:
        """Learn, in a thread of gRPC's, that the call of an attempt has ended."""
        code = inner.code()
        trailers = inner.trailing_metadata()
        details = inner.details()
        attempt, connection = sending.placed
        connection.wait_for_goaway(details, self._request.deadline_at)
        with self._service.lock:
            if self._exchange.attempt is not attempt or self._leave_to_reader(sending):
                return  # It was given up, or is for another thread.
            self._detach()
            outcome, found = self._service.settle(
                self._exchange,
                sending.placed,
                code,
                trailers,
                details,
                is_final=not self.can_replay,
                is_cancelled=self._is_callers_fault(),
                on_done=self._later(),
            )
            if outcome is Outcome.NOT_SENT:
                self._was_not_sent()
            else:
                self._outcome = outcome
                self._settled = sending
            if found is not None:
                self._sent = None
        self._take(found)

    def _was_not_sent(self) -> None:
        """Be as before the last attempt."""
        self.backend, self.attempts = None, 0
        if self._settled is not None:
            attempt, connection = self._settled.placed
            self.backend, self.attempts = connection.backend.address, attempt.number

    def _leave_to_reader(self, sending: Sending) -> bool:  # noqa: ARG002 -- see streams
        return False

    def _is_callers_fault(self) -> bool:
        return False

    def _give_up(self, status: Unsent) -> bool:
        with self._service.lock:
            if self._is_over:
                return False
            self._is_cancelled = True
            # In another thread: whoever cancels may hold a lock that a callback takes.
            self._end(status, in_thread=True)
            sending = self._sent
        self._service.abandon(self._exchange)
        if sending is not None:
            sending.inner.cancel()
        return True

    def _end(self, unsent: Unsent | None, *, in_thread: bool = False) -> None:
        with self._service.lock:
            if self._is_over:
                return
            self._is_over = True
            self._unsent = unsent
            if unsent is None:
                self._sent = self._settled
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


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # As gRPC does: one that raises must not keep the others from hearing.
            _LOGGER.exception("a callback of a call raised")
