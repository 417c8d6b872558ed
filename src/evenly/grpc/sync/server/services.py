"""Serve what other people's clients ask a threaded backend for: its health, and its load.

As in `evenly.grpc.server.services`: both follow the lame duck state and bypass admission, for a
backend that is overloaded must go on saying so.  They also bypass the pool that handlers run in,
where they would wait behind what overloads it: gRPC lets a method have a thread pool of its own,
and lets a stream be written to from any thread, so that one which waits takes none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, final

import grpc
from grpc_health.v1 import health_pb2
from xds.service.orca.v3 import orca_pb2

from evenly.grpc.common.names import HEALTH_SERVICE, ORCA_SERVICE
from evenly.grpc.sync.background import Background
from evenly.runtime.backend import BackendRuntime
from evenly.wire import orca

__all__ = ["Health", "Orca"]

_Response = health_pb2.HealthCheckResponse
# A client that does not read what it asked for can hold one of these up.
_ORCA_THREADS: Final = 4

Send = Callable[[Any], None]
"""gRPC's own: send a message, or `None` to end the stream; it waits until that is done."""


def _in_pool(behavior: Any, pool: ThreadPoolExecutor, *, is_stream: bool = False) -> Any:
    """Return a function that gRPC calls in this pool; a stream gets a `Send` as third argument."""

    def called(*arguments: Any) -> Any:
        return behavior(*arguments)

    called.experimental_thread_pool = pool  # type: ignore[attr-defined]
    called.experimental_non_blocking = is_stream  # type: ignore[attr-defined]
    return called


@final
class _Stream:
    """Write to one client, from whatever thread has something to say, one at a time."""

    __slots__ = ("_lock", "_send", "said", "timer")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self.said: object = None
        self.timer: asyncio.TimerHandle | None = None

    def write(self, message: Callable[[], object]) -> None:
        """Send what `message` returns, made when it is its turn; nothing if that was said last."""
        with self._lock:
            said = message()
            if said != self.said:
                self.said = said
                self._send(said)

    def write_if_free(self, message: Callable[[], object]) -> None:
        """Send what `message` returns, unless the client has not read the one before."""
        if self._lock.acquire(blocking=False):
            try:
                self._send(message())
            finally:
                self._lock.release()

    def end(self) -> None:
        """End the stream."""
        with self._lock:
            self._send(None)


@final
class Health:
    """Answer for the whole backend ("") and for each service that it knows by name."""

    def __init__(self, runtime: BackendRuntime) -> None:
        self._is_lame_duck = runtime.is_lame_duck
        self._names: dict[str, None] = {"": None}
        self._lock = threading.Lock()
        self._watchers: dict[_Stream, Callable[[], object]] = {}
        self._is_closed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evenly-health")
        runtime.on_state(self._changed)

    def add_to(self, server: grpc.Server) -> None:
        """Register with a server that has not started."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                _in_pool(self._check, self._pool),
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=_Response.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                _in_pool(self._watch, self._pool, is_stream=True),
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=_Response.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))

    def add_names(self, names: Iterable[str]) -> None:
        """Answer for these services too."""
        self._names.update(dict.fromkeys(names))
        self._tell()

    def end_streams(self) -> None:
        """End the watches that are under way: a server that stops would wait for them."""
        self._is_closed = True
        with self._lock:
            watchers, self._watchers = self._watchers, {}
        for stream in watchers:
            self._pool.submit(stream.end)

    def close(self) -> None:
        """Leave no thread behind."""
        self._pool.shutdown()

    def _status(self, name: str) -> object:
        if name not in self._names:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        is_serving = not self._is_lame_duck
        return _Response(status=_Response.SERVING if is_serving else _Response.NOT_SERVING)

    def _check(self, request: Any, context: Any) -> object:
        if request.service not in self._names:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return self._status(request.service)

    def _watch(self, request: Any, context: Any, send: Send) -> None:
        stream = _Stream(send)
        name = request.service

        def status() -> object:
            return self._status(name)

        with self._lock:
            self._watchers[stream] = status
        stream.write(status)
        if not context.add_callback(lambda: self._forget(stream)):
            self._forget(stream)
        if self._is_closed and self._forget(stream):
            stream.end()

    def _forget(self, stream: _Stream) -> bool:
        with self._lock:
            return self._watchers.pop(stream, None) is not None

    def _changed(self, is_lame_duck: bool) -> None:
        self._is_lame_duck = is_lame_duck
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            watchers = list(self._watchers.items())
        for stream, status in watchers:
            self._pool.submit(stream.write, status)


@final
class Orca:
    """Send ORCA load reports at the interval that a client asks for."""

    def __init__(self, runtime: BackendRuntime) -> None:
        self._runtime = runtime
        self._least_seconds = runtime.config.orca_least_seconds
        self._background: Background | None = None
        self._streams: dict[_Stream, None] = {}
        self._pool = ThreadPoolExecutor(_ORCA_THREADS, thread_name_prefix="evenly-orca")

    def add_to(self, server: grpc.Server) -> None:
        """Register with a server that has not started."""
        handler = grpc.unary_stream_rpc_method_handler(
            _in_pool(self._stream, self._pool, is_stream=True),
            request_deserializer=orca_pb2.OrcaLoadReportRequest.FromString,
        )
        methods = {"StreamCoreMetrics": handler}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ORCA_SERVICE, methods),)
        )

    def start(self, background: Background) -> None:
        """Begin."""
        self._background = background

    def end_streams(self) -> None:
        """End the streams that are under way, on the loop's thread."""
        self._background = None
        streams, self._streams = self._streams, {}
        for stream in streams:
            if stream.timer is not None:
                stream.timer.cancel()
            self._pool.submit(stream.end)

    def close(self) -> None:
        """Leave no thread behind."""
        self._pool.shutdown(wait=False)

    def _stream(self, request: Any, context: Any, send: Send) -> None:
        stream = _Stream(send)
        background = self._background
        if background is None:
            stream.end()
            return
        asked = request.report_interval
        # A duration's parts are whole numbers of any sign, and so this is finite.
        seconds = max(self._least_seconds, asked.seconds + asked.nanos * 1e-9)
        context.add_callback(lambda: background.soon(self._forget, stream))
        background.soon(self._begin, stream, seconds)

    # The loop's thread.

    def _begin(self, stream: _Stream, seconds: float) -> None:
        if self._background is None:
            self._pool.submit(stream.end)
            return
        self._streams[stream] = None
        self._send(stream, seconds)

    def _send(self, stream: _Stream, seconds: float) -> None:
        if self._background is not None and stream in self._streams:
            self._pool.submit(stream.write_if_free, self._report)
            loop = self._background.loop
            stream.timer = loop.call_later(seconds, self._send, stream, seconds)

    def _forget(self, stream: _Stream) -> None:
        self._streams.pop(stream, None)
        if stream.timer is not None:
            stream.timer.cancel()

    def _report(self) -> bytes:
        memory = self._runtime.readings.memory_utilization
        return orca.serialize(self._runtime.report(), memory_utilization=memory)
