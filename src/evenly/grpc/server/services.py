"""Serve what other people's clients ask a backend for: its health, and its load out of band.

`grpc.health.v1` follows the lame duck state and nothing else: overload is not death
(`docs/health.md`).  The servicer of grpcio-health-checking 1.85 is not used, because of `Watch`:
when one watcher of a service leaves, it forgets all others of that service, who then never hear of
the lame duck.

Both bypass admission: a backend that is overloaded must go on saying so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final, final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from xds.service.orca.v3 import orca_pb2

from evenly.grpc.common.names import ORCA_SERVICE
from evenly.runtime.backend import BackendRuntime
from evenly.wire import orca

__all__ = ["Health", "Orca"]

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@final
class _GenericOnly:
    """Be a server to generated code, and leave out that methods are registered by name.

    grpc.aio would wait for each of them anew for each request, whatever that asks for.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: object) -> None:
        """Do nothing: the same methods have been added as generic ones."""


@final
class Health(health_pb2_grpc.HealthServicer):
    """Answer for the whole backend ("") and for each service that it knows by name."""

    def __init__(self, runtime: BackendRuntime) -> None:
        self._status = _NOT_SERVING if runtime.is_lame_duck else _SERVING
        self._names: dict[str, None] = {"": None}
        self._watchers: dict[asyncio.Event, None] = {}  # a set that keeps its order
        self._is_closed = False
        runtime.on_state(self._changed)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server that has not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self, _GenericOnly(server))

    def add_names(self, names: Iterable[str]) -> None:
        """Answer for these services too."""
        for name in names:
            if name not in self._names:
                self._names[name] = None
                self._wake()

    def close(self) -> None:
        """End the watches that are under way: a server that stops would wait for them."""
        self._is_closed = True
        self._wake()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 -- gRPC's
        """Say how a service is."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 -- gRPC's
        """Say how all services are."""
        response = health_pb2.HealthCheckResponse(status=self._status)
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(self._names, response))

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 -- gRPC's
        """Say how a service is, and again whenever that changes."""
        woken = asyncio.Event()
        self._watchers[woken] = None
        said: object = None
        try:
            while True:
                woken.clear()
                status = self._status if request.service in self._names else _UNKNOWN
                if status != said:
                    said = status
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                elif self._is_closed:  # Not before the last word is said.
                    return
                else:
                    await woken.wait()
        finally:
            del self._watchers[woken]

    def _changed(self, is_lame_duck: bool) -> None:
        self._status = _NOT_SERVING if is_lame_duck else _SERVING
        self._wake()

    def _wake(self) -> None:
        for woken in self._watchers:
            woken.set()


@final
class Orca:
    """Send ORCA load reports at the interval that a client asks for."""

    def __init__(self, runtime: BackendRuntime) -> None:
        self._runtime = runtime
        self._least_seconds = runtime.config.orca_least_seconds
        self._closing = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server that has not started."""
        handler = grpc.unary_stream_rpc_method_handler(
            self._stream, request_deserializer=orca_pb2.OrcaLoadReportRequest.FromString
        )
        methods = {"StreamCoreMetrics": handler}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ORCA_SERVICE, methods),)
        )

    def close(self) -> None:
        """End the streams that are under way: a server that stops would wait for them."""
        self._closing.set()

    async def _stream(self, request: Any, context: Any) -> None:
        asked = request.report_interval
        # A duration's parts are whole numbers of any sign, and so this is finite.
        seconds = max(self._least_seconds, asked.seconds + asked.nanos * 1e-9)
        while not self._closing.is_set():
            memory = self._runtime.readings.memory_utilization
            report = self._runtime.report()
            await context.write(orca.serialize(report, memory_utilization=memory))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
