"""A call through an evenly channel: one or more attempts, each a call of gRPC's own.

Nothing here runs in a task of its own.  An attempt ends in gRPC's done-callback, which settles it
with the core and, where the core allows, begins the next; so counts are right whether or not anyone
awaits the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from evenly.core.attempt import Attempt
from evenly.core.exchange import Connect, Ended, Exchange, Step
from evenly.core.request import Outcome, Rejection, Request
from evenly.grpc.client.connection import Connection
from evenly.grpc.client.errors import refused_by_backend, refused_here
from evenly.grpc.client.refusal import REFUSAL, Nowhere
from evenly.grpc.client.sending import Sending, at_once, error_of, status_of
from evenly.grpc.common.connections import State
from evenly.grpc.common.translation import local_status, options_of

if TYPE_CHECKING:
    from evenly.grpc.client.multicallable import Method
    from evenly.grpc.client.service import Service

__all__ = ["AnyCall", "Given"]

Given = tuple[Any, grpc.CallCredentials | None, grpc.Compression | None]
"""What the caller gave beside the message: metadata, credentials, compression."""

_OK = grpc.StatusCode.OK
_CANCELLED = grpc.StatusCode.CANCELLED
_REFUSED = "evenly: gRPC refused the call (local)"
_CANCELLED_HERE = "Locally cancelled by application!"


class AnyCall:
    """Be what the four kinds of call have in common.

    `backend` is the address that served it, or serves it now, and `attempts` how many were made.
    """

    is_weak = False
    """Whether gRPC's call must not keep this one alive."""
    sends_stream = False
    _channel = None
    """Older channels of gRPC, when closed, look at every call in sight, and skip those without."""

    # What most calls never set.  In the class, because a call costs what it stores.
    _inner: Any = None
    """gRPC's call of the attempt under way, or of the last one."""
    _failed: tuple[Any, Any, Any] | None = None
    """`_inner`, `backend` and `seen` of the one before, to stand if the next cannot be sent."""
    _sending: Sending | None = None
    seen: grpc.aio.AioRpcError | None = None
    """How a call that sends a stream ended, well or not: gRPC does not remember it well."""
    raised: Exception | None = None
    """What an interceptor raised, instead of a call."""
    _outcome: Outcome | None = None
    _timer: asyncio.TimerHandle | None = None
    _changed: asyncio.Future[None] | None = None
    _callbacks: tuple[Callable[[Any], None], ...] = ()
    _status: tuple[grpc.StatusCode, str] | None = None
    """How it ended, where gRPC has no call that says so."""
    _rejection: Rejection | None = None
    _error: Exception | None = None
    is_given_up = False
    """Whether the caller has cancelled it."""
    _is_over = False
    can_replay = True
    """Whether it could be sent again: the caller has seen nothing of an answer."""
    backend: str | None = None
    """The address of the backend that serves or served it; `None` before it was sent."""
    attempts = 0
    """How often it was sent."""

    def __init__(
        self,
        method: Method,
        service: Service,
        request: Request,
        given: Given,
        is_patient: bool,  # By position: this runs once per call.
    ) -> None:
        self._method = method
        self._service = service
        self._request = request
        metadata = given[0]
        if metadata is not None and not isinstance(metadata, (tuple, list, grpc.aio.Metadata)):
            # It may be an iterator, and there may be other attempts.
            given = (tuple(metadata), *given[1:])
        self._given = given
        # An attempt may be sent later and from elsewhere; what runs in it belongs to the caller.
        self._context = copy_context()
        method.channel.call_begun(self)
        self._exchange = Exchange(service.runtime.requests, request, is_patient)
        self._go_on(service.runtime.begin(self._exchange))
        if self._error is not None:
            raise self._error

    # What a user can ask and do.

    def done(self) -> bool:
        """Return whether it is over."""
        return self._is_over

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        if self._is_over and self._status is None:
            return bool(self._inner.cancelled())
        return self.is_given_up

    def time_remaining(self) -> float | None:
        """Return how many seconds are left until the deadline; `None` without one."""
        deadline_at = self._request.deadline_at
        loop = self._service.runtime.loop
        return None if deadline_at is None else max(0.0, deadline_at - loop.time())

    def cancel(self) -> bool:
        """Give the call up; return False if it was over."""
        if self._is_over:
            return False
        self.is_given_up = True
        if self._inner is not None:
            is_cancelled = bool(self._inner.cancel())
            if self._sending is not None:
                self._sending.hurry(self._inner)
            return is_cancelled or self._status is not None
        self._exchange.cancel()
        self._service.runtime.follow_up()
        self._end(_CANCELLED, _CANCELLED_HERE)
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with this call when it is over."""
        if self._is_over:
            self._service.runtime.loop.call_soon(callback, self)
        else:
            self._callbacks += (callback,)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return what the backend sent first."""
        while True:
            inner = await self._sent()
            if inner is None:
                return grpc.aio.Metadata()
            metadata: grpc.aio.Metadata = await inner.initial_metadata()
            if inner is self._inner:
                return metadata

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return what the backend sent last."""
        await self._ended()
        if self._status is not None:
            return grpc.aio.Metadata()
        seen = self.seen
        return (
            at_once(self._inner.trailing_metadata()) if seen is None else seen.trailing_metadata()
        )

    async def code(self) -> grpc.StatusCode:
        """Return the status code."""
        await self._ended()
        if self._status is not None:
            return self._status[0]
        return at_once(self._inner.code()) if self.seen is None else self.seen.code()

    async def details(self) -> str:
        """Return what the status says."""
        await self._ended()
        if self._status is not None:
            return self._status[1]
        return at_once(self._inner.details()) if self.seen is None else self.seen.details() or ""

    async def debug_error_string(self) -> str:
        """Return what gRPC says about an error."""
        await self._ended()
        if self._status is not None:
            return ""
        seen = self.seen
        said = (
            at_once(self._inner.debug_error_string()) if seen is None else seen.debug_error_string()
        )
        return said or ""

    async def wait_for_connection(self) -> None:
        """Wait until the request was sent."""
        while True:
            inner = await self._sent()
            if inner is None:
                self._raise_status()
                return
            try:
                await inner.wait_for_connection()
            except grpc.aio.AioRpcError as error:
                await self._settled(inner)
                if inner is self._inner:
                    raise self.translated(error) from None
            else:
                return

    # The life of an attempt.

    def _open(self, connection: Connection | Nowhere, options: dict[str, Any]) -> Any:
        """Begin gRPC's own call on a connection."""
        raise NotImplementedError

    def _watch_deadline(self) -> None:
        """Keep the deadline while gRPC, which keeps it otherwise, has no call yet."""
        deadline_at = self._request.deadline_at
        if deadline_at is not None and self._timer is None:
            self._timer = self._service.runtime.loop.call_at(deadline_at, self._expire)

    def _expire(self) -> None:
        if self._inner is None and not self._is_over:
            self._go_on(self._exchange.expire())
            self._service.runtime.follow_up()

    def _go_on(self, step: Step) -> None:
        """Do what the core says."""
        if isinstance(step, Attempt):
            connection = self._service.connection_for(step)
            if connection is not None and connection.state is State.CONNECTING:
                connection.park(self, self._exchange.connect().until)
                self._watch_deadline()
            else:
                self._send(step, connection)
        elif isinstance(step, Ended):
            self._end_with(step)
        else:
            self._watch_deadline()
            self._service.runtime.hold(self._exchange, step, self._go_on)

    def _end_with(self, ended: Ended) -> None:
        rejection = ended.rejection
        if rejection is not None:
            self._refuse(rejection, *local_status(rejection, self._request, self._service.name))
            return
        if self._inner is None and self._failed is not None:
            self._inner, self.backend, self.seen = self._failed  # An attempt was made: it stands.
        self._end()

    def connected(self, connection: Connection) -> None:
        """Go on: the connection that was waited for stands, or is gone."""
        if not self._exchange.is_over:
            self._send(self._exchange.connected(), connection)

    def waited(self) -> float | None:
        """Go on elsewhere, if that can be had; else return how long to wait on."""
        if self._exchange.is_over:
            return None
        step = self._exchange.waited()
        if isinstance(step, Connect):
            return step.until
        self._go_on(step)
        self._service.runtime.follow_up()
        return None

    def _send(self, attempt: Attempt, connection: Connection | None) -> None:
        if connection is None or not connection.is_ready():
            self._go_on(self._exchange.not_sent(is_final=not self.can_replay))
            self._service.runtime.follow_up()
            return
        if self._timer is not None:
            self._timer.cancel()  # gRPC keeps the deadline now.
            self._timer = None
        try:
            inner = self._context.run(self._open, connection, self._options(attempt))
        except Exception as error:  # noqa: BLE001 -- it is the caller's mistake, and raised there
            self._error = error
            self._exchange.cancel()
            self._service.runtime.follow_up()
            self._end(grpc.StatusCode.INTERNAL, _REFUSED)
            return
        self._inner = inner
        self.backend = connection.backend.address
        self.attempts += 1
        connection.active += 1
        self.seen = None
        self._sending = sending = Sending(self, self._exchange, attempt, connection)
        inner.add_done_callback(sending.ended)
        if self._changed is not None:
            self._wake()

    def _options(self, attempt: Attempt) -> dict[str, Any]:
        now = time.monotonic()
        return options_of(attempt.request, attempt.number, now, *self._given, attempt.line)

    def _refuse(self, rejection: Rejection, code: grpc.StatusCode, details: str) -> None:
        """End a call that was never sent; interceptors see it like any that failed."""
        self._rejection = rejection
        if not self._method.channel.has_interceptors or not self.can_replay:
            self._end(code, details)
            return

        def refusal() -> grpc.aio.AioRpcError:
            return refused_here(rejection, code, details)

        def run() -> Any:
            REFUSAL.set(refusal)
            options = options_of(self._request, 1, time.monotonic(), *self._given)
            return self._open(self._service.nowhere, options)

        try:
            self._inner = self._context.run(run)
        except Exception as error:  # noqa: BLE001 -- it is the caller's mistake, and raised there
            self._error = error
            self._end(grpc.StatusCode.INTERNAL, _REFUSED)
            return
        self._inner.add_done_callback(partial(self._was_refused, refusal()))
        if self._changed is not None:
            self._wake()

    def _was_refused(self, refusal: grpc.aio.AioRpcError, inner: Any) -> None:
        """Learn what the interceptors have made of a refusal, for those who still write."""
        code, trailers, is_cancelled, self.raised = status_of(inner)
        if self.raised is None and code is not _OK and not is_cancelled:
            is_as_it_was = at_once(inner.details()) == refusal.details()
            self.raised = refusal if is_as_it_was else error_of(inner, code, trailers)
        self._end()

    def attempt_ended(self, outcome: Outcome, step: Step) -> None:
        """Learn how an attempt ended, and what to do next."""
        if outcome is Outcome.NOT_SENT:
            self.attempts -= 1
            self._inner = self.backend = self.seen = None
            if self.is_given_up:
                self._end(_CANCELLED, _CANCELLED_HERE)  # It is not sent again.
                return
        else:
            self._outcome = outcome
            if not isinstance(step, Ended):
                self._failed = (self._inner, self.backend, self.seen)
                self._inner = None
        self._go_on(step)

    def _end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None:
            self._status = (code, details)
        if self._timer is not None:
            self._timer.cancel()
        self._method.channel.call_ended(self)
        if self._changed is not None:
            self._wake()
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, ()
            for callback in callbacks:
                # As asyncio does: one that raises must not keep the others from hearing.
                self._service.runtime.loop.call_soon(callback, self)

    # Waiting for it.

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = self._service.runtime.loop.create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def _sent(self) -> Any:
        """Return gRPC's call as soon as there is one; `None` if it ended without."""
        while self._inner is None and not self._is_over:
            await self._change()
        return self._inner if self._status is None else None

    async def _ended(self) -> None:
        while not self._is_over:
            await self._change()

    async def _settled(self, inner: Any) -> None:
        """Wait until it is known what becomes of a failed attempt; mostly that is so already."""
        while inner is self._inner and not self._is_over:
            await self._change()

    def _raise_status(self) -> None:
        """Raise what a call that ended without one of gRPC's ended with."""
        if self._status is None:
            return
        code, details = self._status
        if self._error is not None:
            raise self._error
        if code is _CANCELLED:
            raise asyncio.CancelledError
        if self._rejection is not None:
            raise refused_here(self._rejection, code, details)
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, empty, empty, details)

    def _refused(self, inner: Any) -> None:
        """End a call that gRPC could not begin: it says so to whoever waits, and is never done."""
        if inner is not None and not inner.done():
            inner.cancel()

    def translated(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return gRPC's error, as one of ours where a backend refused."""
        if self.seen is not None and self.seen.code() is not _OK:
            error = self.seen
        return refused_by_backend(error, self._outcome)
