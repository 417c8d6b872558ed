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

from evenly.core.attempt import Attempt
from evenly.core.request import Next, Request
from evenly.grpc.sync.connection import Connection
from evenly.grpc.sync.errors import CANCELLED, FORKED, Unsent
from evenly.grpc.sync.status import Status
from evenly.grpc.sync.turn import Placed, Turn

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

    def ended(self, inner: Any) -> None:
        """Learn that gRPC's call has ended, in whatever way."""
        call = self._call if self._weak_call is None else self._weak_call()
        self._call = None  # gRPC's call still holds us, and the call holds it.
        if call is not None and not self.is_settled:
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
        self._failed: Sending | None = None
        """The attempt before, which counts if the next cannot be sent."""
        self._turn: Turn | None = None
        self._is_replayable = True
        method.channel.call_begun(self)
        try:
            self._take(service.begin(request, is_patient=options.is_patient, on_done=self._later()))
        except ValueError:  # closed
            self._is_over = True
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
        self._turn = None
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
                self._sent = self._failed
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
        before = self.backend
        # Already: the backend may have got it before gRPC returns here.
        self.backend = connection.backend.address
        self.attempts += 1
        try:
            options = self._options.of(attempt)
            sending.inner = inner = self._context.run(self._open, connection, options)
        except Exception as error:  # noqa: BLE001 -- it is the caller's mistake, and raised there
            self.backend = before
            self.attempts -= 1
            self._error = error
            self._service.abandon(attempt, connection)
            self._end(Unsent(grpc.StatusCode.INTERNAL, _REFUSED))
            return
        with self._service.lock:
            self._turn = None
            self._sent = sending
            is_over = self._is_over
            self._changed.notify_all()
        if is_over:  # It was cancelled in this instant.
            self._drop(sending)
        inner.add_done_callback(sending.ended)

    def attempt_ended(self, sending: Sending, inner: Any) -> None:
        """Learn, in a thread of gRPC's, that the call of an attempt has ended."""
        code = inner.code()
        trailers = inner.trailing_metadata()
        details = inner.details()
        sending.connection.wait_for_goaway(details, self._request.deadline_at)
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
                self._failed, self._sent = sending, None
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
            turn, sending = self._turn, self._sent
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


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # As gRPC does: one that raises must not keep the others from hearing.
            _LOGGER.exception("a callback of a call raised")
