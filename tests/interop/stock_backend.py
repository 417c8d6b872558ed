"""A gRPC server that knows nothing of evenly, and offers ORCA's out-of-band service."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from xds.service.orca.v3 import orca_pb2

import evenly.grpc
import evenly.grpc.sync
from evenly.core.client_task import ClientTaskSnapshot
from evenly.runtime.client_config import ClientConfig
from tests.grpc.plain import UNARY_UNARY, PlainBackend, target

# The generated module has no types.
OrcaLoadReport: Any = importlib.import_module(
    "xds.data.orca.v3.orca_load_report_pb2"
).OrcaLoadReport
SERVICE = "xds.service.orca.v3.OpenRcaService"
METHOD = f"/{SERVICE}/StreamCoreMetrics"


def said(used: float, qps: float = 100.0) -> Any:
    return OrcaLoadReport(cpu_utilization=used, rps_fractional=qps)


class StockBackend(PlainBackend):
    """Say `report` at the interval that a client asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Any = said(0.5)
        self.asked = 0
        """How often a client has subscribed."""
        self.streams = 0
        """How many are subscribed now."""
        self.told = 0
        """How many reports were sent."""
        self.code: grpc.StatusCode | None = None
        """With what to end a stream after its first report."""

    async def start(self, **options: Any) -> None:
        await super().start(also=self._offer, **options)

    def _offer(self, server: grpc.aio.Server) -> None:
        handler = grpc.unary_stream_rpc_method_handler(
            self._stream,
            request_deserializer=orca_pb2.OrcaLoadReportRequest.FromString,
            response_serializer=OrcaLoadReport.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"StreamCoreMetrics": handler}),)
        )

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.asked += 1
        self.streams += 1
        try:
            while True:
                self.told += 1
                yield self.report
                if self.code is not None:
                    await context.abort(self.code, "no more")
                await asyncio.sleep(request.report_interval.ToTimedelta().total_seconds())
        finally:
            self.streams -= 1


@contextlib.asynccontextmanager
async def stock_backends(count: int) -> AsyncIterator[list[StockBackend]]:
    backends = [StockBackend() for _ in range(count)]
    try:
        for backend in backends:
            await backend.start()
        yield backends
    finally:
        for backend in backends:
            await backend.stop()


class Client:
    """Be a channel of either API, used from a loop."""

    def __init__(
        self, channel: Any, send: Callable[[], Awaitable[bytes]], close: Callable[[], Any]
    ) -> None:
        self.channel = channel
        self.send = send
        self.close = close

    def snapshot(self) -> ClientTaskSnapshot:
        snapshot: ClientTaskSnapshot = self.channel.snapshot()
        return snapshot

    def weights(self) -> dict[str, float]:
        """Return the weights of those that have said something."""
        backends = self.snapshot().backends
        return {one.address: one.weight for one in backends if one.utilization is not None}


@contextlib.asynccontextmanager
async def client_of(
    api: str, backends: Sequence[PlainBackend], config: ClientConfig
) -> AsyncIterator[Client]:
    """Open a channel of `evenly.grpc` ("aio") or of `evenly.grpc.sync` ("sync")."""
    if api == "aio":
        aio = evenly.grpc.channel(target(*backends), config=config)
        aio_call = aio.unary_unary(UNARY_UNARY)
        client = Client(aio, lambda: aio_call(b""), aio.close)
    else:
        channel = evenly.grpc.sync.channel(target(*backends), config=config)
        call = channel.unary_unary(UNARY_UNARY)
        client = Client(
            channel,
            lambda: asyncio.to_thread(call, b""),
            lambda: asyncio.to_thread(channel.close),
        )
    try:
        yield client
    finally:
        await client.close()
