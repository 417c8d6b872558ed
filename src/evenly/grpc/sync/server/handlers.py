"""Put admission, metering and the load report around the handlers of a threaded server.

The order, as in `ARCHITECTURE.md`: a request is admitted where it arrives (`reception.py`), or
else by the thread of the pool that takes it; only then it is parsed, the handler runs inside the
context with its CPU metered, the request is finished and the report written.  A handler is wrapped
once, not per call.

gRPC answers an exception with whatever status and trailers its context has by then, so handlers get
that context itself, and ours are added on the way out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, final

import grpc

from evenly.context import Serving
from evenly.core.backend_task import Admission
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.grpc.common.answer import Trailers, outcome_of_status, refusal
from evenly.grpc.common.incoming import Incoming
from evenly.grpc.sync.server.reception import Reception
from evenly.runtime.answer import gave_up, is_refusal, passed_on
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.metering import Metering
from evenly.signals.cost_meter import CostMeter

__all__ = ["HandlerWrapper"]

_LOGGER = logging.getLogger("evenly.grpc")
# A service has some hundred methods.  More are made per call, by interceptors, and not seen again.
_REMEMBERED_MOST: Final = 1024
# gRPC says so of a request without a deadline: 292 years.  A month is as good as none.
_DEADLINE_MOST_SECONDS: Final = 30 * 86_400.0
# What gRPC itself takes for a request, in the same interpreter: an echo is all of it.
_GRPC_SECONDS: Final = 0.00025
_EXPIRED: Final = Rejection(Reason.EXPIRED, retryable=False)
_UNDECODABLE: Final = "Exception deserializing request!"


class _Undecodable(Exception):
    """Say that a request could not be parsed."""


@final
class HandlerWrapper:
    """Wrap the handlers of one backend."""

    def __init__(self, runtime: BackendRuntime, reception: Reception) -> None:
        self.runtime = runtime
        self.reception = reception
        self.trailers = Trailers(runtime)
        self.incoming = Incoming(runtime.trust)
        reception.open(runtime, self.incoming, self.trailers)
        # By identity, with the handler itself, which may otherwise leave its identity to another.
        self._wrapped: dict[int, tuple[grpc.RpcMethodHandler, _Wrapped]] = {}

    def wrap(self, handler: grpc.RpcMethodHandler) -> _Wrapped:
        """Return a handler that admits before it serves; the same one each time."""
        known = self._wrapped.get(id(handler))
        if known is not None:
            return known[1]
        if len(self._wrapped) >= _REMEMBERED_MOST:
            self._wrapped.clear()
        wrapped = _wrapped(self, handler)
        self._wrapped[id(handler)] = (handler, wrapped)
        return wrapped


class _Wrapped(NamedTuple):
    handler: grpc.RpcMethodHandler
    is_received: bool
    """Whether it is served by the pool of the server, and so by way of the reception."""


def _wrapped(wrapper: HandlerWrapper, inner: grpc.RpcMethodHandler) -> _Wrapped:
    kind = (
        f"{'stream' if inner.request_streaming else 'unary'}_"
        f"{'stream' if inner.response_streaming else 'unary'}"
    )
    function = getattr(inner, kind)
    if getattr(function, "experimental_non_blocking", False):
        return _Wrapped(inner, False)  # It ends whenever it likes, and nobody is told.
    # Messages of a stream are parsed when they are read, and that is after admission.
    deserialize = None if inner.request_streaming else inner.request_deserializer
    is_stream = inner.request_streaming or inner.response_streaming
    served = _Served(wrapper, function, deserialize, is_stream=is_stream)
    behavior: Any = served.responses if inner.response_streaming else served.response
    has_own_pool = hasattr(function, "experimental_thread_pool")
    if has_own_pool:
        behavior = partial(behavior)  # A bound method takes no attributes.
        behavior.experimental_thread_pool = function.experimental_thread_pool
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made = make(
        behavior,
        request_deserializer=inner.request_deserializer if inner.request_streaming else None,
        response_serializer=inner.response_serializer,
    )
    return _Wrapped(made, not has_own_pool)


@final
class _Call:
    """Hold what is known of one request while it is served."""

    __slots__ = ("admission", "meter", "scope", "to_evenly")

    def __init__(
        self,
        admission: Admission,
        scope: Serving,
        meter: CostMeter | None,
        to_evenly: bool,
    ) -> None:
        self.admission = admission
        self.scope = scope
        self.meter = meter
        self.to_evenly = to_evenly


@final
class _Served:
    """Serve the requests of one method, from any thread.

    What is shared between requests is used under the runtime's lock.
    """

    def __init__(
        self,
        wrapper: HandlerWrapper,
        function: Callable[[Any, Any], Any],
        deserialize: Callable[[bytes], Any] | None,
        *,
        is_stream: bool,
    ) -> None:
        self._function = function
        self._deserialize = deserialize
        self._runtime = runtime = wrapper.runtime
        self._reception = wrapper.reception
        self._read = wrapper.incoming.read
        self._trailers = wrapper.trailers
        # A customer with a quota pays for what it took and not for what others do.
        self._metering = Metering(
            self._measured, runtime.charged, is_always_on=is_stream or runtime.has_quotas
        )

    def _measured(self, cpu_seconds: float, others: int, others_seconds: float) -> None:
        self._runtime.measured(cpu_seconds + _GRPC_SECONDS, others, others_seconds + _GRPC_SECONDS)

    def response(self, raw: Any, context: Any) -> Any:
        """Serve one request with one response."""
        call = self._admit(context)
        meter = call.meter
        try:
            with call.scope:
                if meter is None:
                    response = self._run(raw, context)
                else:
                    response = meter.call(self._run, raw, context)
        except BaseException as error:
            self._failed(call, context, error)
            raise
        self._ended(call, context)
        return response

    def responses(self, raw: Any, context: Any) -> Iterator[Any]:
        """Serve one request with a stream of responses, each step of it metered.

        gRPC drops it where the client has left; what comes after `yield` then ends the request.
        """
        call = self._admit(context)
        step = (call.meter or CostMeter()).call  # Streams are always metered.
        iterator: Any = None
        try:
            with call.scope:
                iterator = iter(step(self._run, raw, context))
                while True:
                    try:
                        response = step(next, iterator)
                    except StopIteration:
                        break
                    yield response
        except BaseException as error:
            try:
                close = getattr(iterator, "close", None)
                if close is not None:
                    step(close)
            except Exception:  # What the handler's own clean-up raises must not keep it active.
                _LOGGER.exception("a stream of responses could not be closed")
            finally:
                self._failed(call, context, error)
            raise
        self._ended(call, context)

    def _run(self, raw: Any, context: Any) -> Any:
        if self._deserialize is not None:
            try:
                raw = self._deserialize(raw)
            except Exception as error:
                raise _Undecodable from error
        return self._function(raw, context)

    def _admit(self, context: Any) -> _Call:
        """Begin a request that was admitted, or admit it now; or abort it."""
        runtime = self._runtime
        with runtime.lock:
            arrival = self._reception.begin()
            meter = self._metering.next()
        answer: Admission | Rejection
        if arrival is None or arrival.admission is None:
            read, attempt, to_evenly, luck, line = self._read(context)
            request = _with_deadline(read, context)
            with runtime.lock:
                runtime.readings.record_runnable()
                answer = runtime.admit(request, attempt, luck=luck, line=line)
        else:
            answer, to_evenly = arrival.admission, arrival.to_evenly
            if arrival.says_level and not self._reception.is_level_of_friend(context):
                answer.luck = None  # It was believed, and is not passed on.
            request = _with_deadline(answer.request, context)
            if request.deadline_at is not None and request.deadline_at <= time.monotonic():
                with runtime.lock:
                    runtime.task.finish(answer, Outcome.TIMEOUT)
                answer = _EXPIRED
        if type(answer) is Rejection:
            self._reception.refuse(context, answer, request, to_evenly=to_evenly)
        scope = Serving(request, runtime.should_degrade, answer.luck)
        return _Call(answer, scope, meter, to_evenly)

    def _ended(self, call: _Call, context: Any) -> None:
        """End a request whose handler has returned."""
        # Its client may have left meanwhile: gRPC lets handlers run on.
        is_left = not context.is_active()
        outcome = (
            gave_up(call.admission, call.scope.request.deadline_at)
            if is_left
            else outcome_of_status(context.code())
        )
        self._finish(call, context, outcome)

    def _failed(self, call: _Call, context: Any, error: BaseException) -> None:
        """End a request whose handler has raised; if this returns, the error goes to gRPC."""
        if not context.is_active() or isinstance(error, GeneratorExit):
            self._finish(call, context, gave_up(call.admission, call.scope.request.deadline_at))
        elif is_refusal(error):
            request = call.scope.request
            rejection = self._pass_on(call, context)
            code, details = refusal(rejection, request)
            context.abort(code, passed_on(details, error))
        elif isinstance(error, _Undecodable):
            _LOGGER.error("a request could not be parsed", exc_info=error.__cause__)
            self._finish(call, context, Outcome.ERROR)
            context.abort(grpc.StatusCode.INTERNAL, _UNDECODABLE)
        else:
            # As gRPC has it: with the status that was set, by `abort` or before, if one was.
            code = context.code()
            self._finish(call, context, Outcome.ERROR if code is None else outcome_of_status(code))

    def _finish(self, call: _Call, context: Any, outcome: Outcome) -> None:
        others = context.trailing_metadata() or ()
        with self._runtime.lock:
            cpu_seconds = self._metering.cpu_seconds(call.meter)
            self._runtime.task.finish(call.admission, outcome, cpu_seconds)
            entries = self._trailers.added_to(
                others, to_evenly=call.to_evenly, is_degraded=call.scope.was_degraded
            )
        context.set_trailing_metadata(entries)

    def _pass_on(self, call: _Call, context: Any) -> Rejection:
        others = context.trailing_metadata() or ()
        with self._runtime.lock:
            cpu_seconds = self._metering.cpu_seconds(call.meter)
            rejection = self._runtime.task.pass_on(call.admission, cpu_seconds)
            entries = self._trailers.of_refusal(rejection, to_evenly=call.to_evenly)
        context.set_trailing_metadata((*others, *entries))
        return rejection


def _with_deadline(request: Request, context: Any) -> Request:
    """Return a request with the deadline that is known now; others may share the one given."""
    seconds = context.time_remaining()
    is_none = seconds is None or seconds > _DEADLINE_MOST_SECONDS
    return request.until(None if is_none else time.monotonic() + seconds)
