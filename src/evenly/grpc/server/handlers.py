"""Put admission, metering and the load report around the handlers of a `grpc.aio` server.

A handler is wrapped once, not per call, which would cost 13 to 15 µs.  Whatever kind it is, what
gRPC sees is a coroutine function: for streams that is its reader-and-writer API, in which a
cancellation arrives inside our frame, so that a request ends here, and exactly once, on every path.

The order, as in `ARCHITECTURE.md`: read the metadata, admit or refuse (a request of one message
is not parsed before), wait for the turn to begin, run inside the context with the CPU metered,
finish, and only then write the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, NoReturn, final

import grpc

from evenly.context import Serving, enter
from evenly.core.request import Outcome, Rejection, Request
from evenly.grpc.common.answer import Trailers, outcome_of_status, refusal
from evenly.grpc.common.incoming import Incoming
from evenly.grpc.server.migration import asynchronous
from evenly.grpc.server.servicer_context import ServicerContext
from evenly.runtime.answer import gave_up, is_refusal, passed_on
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.metering import Metering
from evenly.wire.metadata import rejection_to_grpc

__all__ = ["HandlerWrapper"]

_LOGGER = logging.getLogger("evenly.grpc")
# A service has some hundred methods.  More are made per call, by interceptors, and not seen again.
_REMEMBERED_MOST: Final = 1024
_NO_FAILURE: Final = (None, grpc.StatusCode.OK, 0)


class _Undecodable(Exception):
    """Say that a request could not be parsed."""


@final
class HandlerWrapper:
    """Wrap the handlers of one backend.

    `executor` runs handlers that are plain functions; `None` is the event loop's own.
    """

    def __init__(self, runtime: BackendRuntime, *, executor: Executor | None = None) -> None:
        self.runtime = runtime
        self.trailers = Trailers(runtime)
        self.incoming = Incoming(runtime.trust)
        self._executor = executor
        # By identity, with the handler itself, which may otherwise leave its identity to another.
        self._wrapped: dict[int, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    def wrap(self, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """Return a handler that admits before it serves; the same one each time."""
        known = self._wrapped.get(id(handler))
        if known is not None:
            return known[1]
        if len(self._wrapped) >= _REMEMBERED_MOST:
            self._wrapped.clear()
        wrapped = _MethodHandler(self, handler, self._executor)
        self._wrapped[id(handler)] = (handler, wrapped)
        return wrapped

    async def refuse(
        self,
        inner: Any,
        rejection: Rejection,
        request: Request,
        *,
        to_evenly: bool,
    ) -> NoReturn:
        """Abort a request that was not admitted: before any message, so in Trailers-Only form."""
        code, details = refusal(rejection, request)
        entries = self.trailers.of_refusal(rejection, to_evenly=to_evenly)
        await inner.abort(code, details, entries)
        raise AssertionError  # It raises.

    async def wait_for_turn(self, call: ServicerContext) -> None:
        """Wait until an admitted request may begin."""
        try:
            await self.runtime.wait_for_turn()
        except BaseException:
            self.runtime.task.finish(
                call.admission, gave_up(call.admission, call.admission.deadline_at)
            )
            raise

    async def failed(self, call: ServicerContext, error: BaseException, cpu_seconds: float) -> None:
        """End a request whose handler has raised; if this returns, the error goes to gRPC."""
        admission = call.admission
        if call.abort_code is not None:
            self.runtime.task.finish(admission, outcome_of_status(call.abort_code), cpu_seconds)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit | grpc.aio.InternalError):
            # The last: the stream broke under a message before gRPC cancelled the handler.
            self.runtime.task.finish(
                admission, gave_up(admission, admission.deadline_at), cpu_seconds
            )
        elif is_refusal(error):
            rejection = self.runtime.task.pass_on(admission, cpu_seconds)
            code, details = refusal(rejection, admission.request)
            entries = (*call.trailing_metadata(), *rejection_to_grpc(rejection))
            await call.abort(code, passed_on(details, error), entries)
        elif isinstance(error, _Undecodable):
            self.runtime.task.finish(admission, Outcome.ERROR, cpu_seconds)
            _LOGGER.error("a request could not be parsed", exc_info=error.__cause__)
            await call.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
        else:
            # As gRPC has it: with the status that was set, if one was.
            code = call.inner.code()
            is_set = code not in _NO_FAILURE
            outcome = outcome_of_status(code) if is_set else Outcome.ERROR
            self.runtime.task.finish(admission, outcome, cpu_seconds)
            call.add_trailers()


@final
class _MethodHandler(grpc.RpcMethodHandler):
    """Be what gRPC asks a handler for, around another one."""

    def __init__(
        self, wrapper: HandlerWrapper, inner: grpc.RpcMethodHandler, executor: Executor | None
    ) -> None:
        self.request_streaming = inner.request_streaming
        self.response_streaming = inner.response_streaming
        # Messages of a stream are parsed when they are read, and that is after admission.
        self.request_deserializer = inner.request_deserializer if inner.request_streaming else None
        # A single response is serialized by us, so that it is metered, as those of streams are.
        self.response_serializer = inner.response_serializer if inner.response_streaming else None
        self.unary_unary = self.unary_stream = self.stream_unary = self.stream_stream = None
        kind = (
            f"{'stream' if inner.request_streaming else 'unary'}_"
            f"{'stream' if inner.response_streaming else 'unary'}"
        )
        self._wrapper = wrapper
        self._runtime = wrapper.runtime
        self._should_degrade = wrapper.runtime.should_degrade
        self._read = wrapper.incoming.read
        self._load = wrapper.trailers.load
        self._news_for = wrapper.trailers.news_for
        self._metering = Metering(
            wrapper.runtime.measured,
            wrapper.runtime.charged,
            # A customer with a quota pays for what it took and not for what others do.
            is_always_on=inner.request_streaming
            or inner.response_streaming
            or wrapper.runtime.has_quotas,
        )
        self._deserialize = None if inner.request_streaming else inner.request_deserializer
        self._serialize = inner.response_serializer
        self._function = function = getattr(inner, kind)
        self._work: Callable[[Any, ServicerContext], Coroutine[Any, Any, Any]]
        if inner.response_streaming and inspect.isasyncgenfunction(function):
            self._work = self._send_all
        else:
            if not inspect.iscoroutinefunction(function):
                self._function = asynchronous(inner, function, executor)
            self._work = self._write_all if inner.response_streaming else self._answer
        setattr(self, kind, self.serve)

    async def serve(self, message: Any, inner: Any) -> Any:
        """Serve one request.

        Written out rather than divided: in a server whatever runs once per request has left the
        CPU's caches since the last one, and costs three times what it does in a loop of its own.
        """
        runtime = self._runtime
        request, attempt, to_evenly, luck, line = self._read(inner)
        admission = runtime.task.admit(request, attempt, luck=luck, line=line)
        if type(admission) is Rejection:
            await self._wrapper.refuse(inner, admission, request, to_evenly=to_evenly)
        if not runtime.readings.is_timing:
            runtime.readings.begun()
        scope = Serving(request, self._should_degrade, admission.luck)
        call = ServicerContext(inner, self._wrapper.trailers, admission, scope, to_evenly)
        if not runtime.gate.try_enter():
            await self._wrapper.wait_for_turn(call)
        enter(scope)
        metering = self._metering
        meter = metering.next()
        try:
            work = self._work(message, call)
            response = await (work if meter is None else meter.run(work))
        except BaseException as error:
            await self._wrapper.failed(call, error, metering.cpu_seconds(meter))
            raise
        code = inner.code() if call.abort_code is None else call.abort_code
        outcome = Outcome.OK if code is None else outcome_of_status(code)
        cpu_seconds = metering.mean_seconds if meter is None else metering.cpu_seconds(meter)
        runtime.task.finish(admission, outcome, cpu_seconds)
        if call.abort_code is None:
            if inner.trailing_metadata() or scope.was_degraded:
                call.add_trailers()
            elif not to_evenly:
                inner.set_trailing_metadata(self._load(to_evenly))
            elif news := self._news_for(inner.peer()):
                inner.set_trailing_metadata(news)
        return response

    async def _answer(self, raw: Any, call: ServicerContext) -> Any:
        response = await self._function(self._parsed(raw), call)
        # gRPC drops the response of a failure, and so it need not be one.
        if self._serialize is None or call.inner.code() not in _NO_FAILURE or call.abort_code:
            return response
        return self._serialize(response)

    async def _write_all(self, raw: Any, call: ServicerContext) -> None:
        await self._function(self._parsed(raw), call)

    async def _send_all(self, raw: Any, call: ServicerContext) -> None:
        write = call.inner.write
        async with contextlib.aclosing(self._function(self._parsed(raw), call)) as responses:
            async for response in responses:
                await write(response)

    def _parsed(self, raw: Any) -> Any:
        if self._deserialize is None:
            return raw
        try:
            return self._deserialize(raw)
        except Exception as error:
            raise _Undecodable from error
