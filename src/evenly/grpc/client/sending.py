"""One attempt of a call while it is under way: what settles it when gRPC's call has ended."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import grpc
import grpc.aio

from evenly.core.attempt import Attempt
from evenly.core.exchange import Exchange, Step
from evenly.core.request import Outcome
from evenly.grpc.client.connection import Connection
from evenly.grpc.common.translation import PUSHBACK_KEY, is_unsent, outcome_of, outcome_of_lost
from evenly.wire import load_header, orca
from evenly.wire.metadata import REJECT_KEY

if TYPE_CHECKING:
    from evenly.grpc.client.call import AnyCall

__all__ = ["Sending", "at_once", "error_of", "status_of"]

T = TypeVar("T")

_OK = grpc.StatusCode.OK
_CANCELLED = grpc.StatusCode.CANCELLED
_INTERNAL = grpc.StatusCode.INTERNAL
# How often, and after how long, to look again at a status that may be about to change; and at a
# connection that was told to go away, which is rare and costs a call where it comes too late.
_LOOKS: Final = 5
_GOAWAY_LOOKS: Final = 30
_LOOK_SECONDS: Final = 0.003
_NO_METADATA = grpc.aio.Metadata()


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine of an ended call returns: it has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("gRPC made us wait for the status of a call that has ended")


def status_of(
    inner: Any,
) -> tuple[grpc.StatusCode, grpc.aio.Metadata, bool, Exception | None]:
    """Return how gRPC's call ended: its code and trailers, and whether this side gave it up.

    The last is what an interceptor raised instead.
    """
    try:
        code = at_once(inner.code())
        trailers = at_once(inner.trailing_metadata())
        # `cancelled` is true for a CANCELLED that was received, too; only that one is explained.
        is_ours = code is _CANCELLED and not at_once(inner.debug_error_string())
    except Exception as error:  # noqa: BLE001 -- an interceptor's, which its caller will see
        return _CANCELLED, _NO_METADATA, True, error
    # A response that an interceptor made up has no trailers.
    return code, _NO_METADATA if trailers is None else trailers, is_ours, None


def error_of(
    inner: Any,
    code: grpc.StatusCode,
    trailers: grpc.aio.Metadata,
) -> grpc.aio.AioRpcError | None:
    """Return that as an error, also where it is none; `None` where an interceptor raised."""
    try:
        initial = at_once(inner.initial_metadata())
        details = at_once(inner.details())
        return grpc.aio.AioRpcError(
            code, initial, trailers, details, at_once(inner.debug_error_string())
        )
    except Exception:  # noqa: BLE001 -- an interceptor raised, which its caller is about to see
        return None


@final
class Sending:
    """Settle one attempt when gRPC's call has ended.

    gRPC holds it until then.  So it holds a call whose response is a stream only weakly: a stream
    that nobody reads any more must be able to go, and that ends its attempt.
    """

    __slots__ = (
        "_attempt",
        "_call",
        "_connection",
        "_exchange",
        "_looks",
        "_sends_stream",
        "_timer",
        "_weak_call",
    )

    def __init__(
        self, call: AnyCall, exchange: Exchange, attempt: Attempt, connection: Connection
    ) -> None:
        self._exchange = exchange
        self._attempt = attempt
        self._connection = connection
        self._call = None if call.is_weak else call
        self._weak_call = weakref.ref(call) if call.is_weak else None
        self._sends_stream = call.sends_stream
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, inner: Any) -> None:
        """Learn that gRPC's call has ended, in whatever way."""
        code, trailers, is_cancelled, raised = status_of(inner)
        connection = self._connection
        runtime = connection.owner.runtime
        is_stream = code is _INTERNAL and self._sends_stream and not trailers
        if is_stream and self._looks < _LOOKS:
            # So gRPC says at once of a message that could not be sent, and hears only then why: a
            # backend that refuses a stream before it has read it looks so.
            self._look_again(inner)
            return
        attempt = self._attempt
        load = trailers.get(load_header.KEY)
        is_reported = False
        if load is not None:
            is_reported = runtime.heard_load(connection.backend, load)
        else:
            if code is _OK:
                runtime.heard_nothing(connection.backend)
            if trailers and runtime.task.wants_orca(attempt.view):
                said = orca.parse_metadata(trailers.get(orca.HTTP_KEY))
                runtime.heard_orca(connection.backend, said)
        outcome = outcome_of(
            code,
            None if code is _OK else trailers.get(REJECT_KEY),
            is_reported=is_reported,
            has_pushback=code is not _OK and trailers.get(PUSHBACK_KEY) is not None,
            is_cancelled=is_cancelled,
        )
        if outcome is Outcome.LOST:
            details = at_once(inner.details())
            is_ready = connection.is_ready()
            is_unseen = is_unsent(details, connection.backend.address)
            now = runtime.loop.time()
            deadline_at = attempt.request.deadline_at
            may_wait = self._looks < _GOAWAY_LOOKS and (deadline_at is None or now < deadline_at)
            if is_unseen and is_ready and may_wait:
                # The call ends before the connection shows that the backend asked it to go away.
                self._look_again(inner)
                return
            outcome = outcome_of_lost(attempt, details, now, is_ready=is_ready)
        self._timer = None
        call = self._call if self._weak_call is None else self._weak_call()
        self._call = None  # gRPC's call still holds us, and the call holds it.
        is_final = call is None or call.is_given_up or not call.can_replay
        exchange = self._exchange
        if outcome is Outcome.NOT_SENT:
            step: Step = exchange.not_sent(is_final=is_final)
        else:
            step = exchange.ended(outcome, is_final=is_final)
        connection.call_ended()
        if call is not None:
            if call.sends_stream:
                # A message that could not be sent overwrites a status that was there before, too.
                call.seen = error_of(inner, code, trailers)
            call.raised = raised
            call.attempt_ended(outcome, step)
        runtime.follow_up()

    def _look_again(self, inner: Any) -> None:
        self._looks += 1
        loop = self._connection.owner.runtime.loop
        self._timer = loop.call_later(_LOOK_SECONDS, self.ended, inner)

    def hurry(self, inner: Any) -> None:
        """Look no more: the caller has given up."""
        if self._timer is not None:
            self._timer.cancel()
            self._looks = _GOAWAY_LOOKS
            self.ended(inner)
