"""A small service on loopback: real backends and clients over gRPC, each with a metrics page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, start_http_server

import evenly
import evenly.grpc
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.overload.utilization_config import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.grpc.client.channel import Channel
from evenly.grpc.server.server import Server
from evenly.observe.prometheus import PrometheusObserver
from evenly.runtime.backend_config import BackendConfig

SERVICE = "test.Things"
METHOD = f"/{SERVICE}/Do"
_STEEP = (Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0), Ramp(4.0, 5.0))
_SIGNALS = {
    **default_signals(),
    "test": SignalConfig(ramps=_STEEP, decay_seconds=0.001, expiry_seconds=3600.0),
}
TASK = BackendTaskConfig(
    quiet_seconds=0.0,
    utilization=UtilizationConfig(signals=_SIGNALS),
    quota=QuotaConfig(limits={"shop": 1.0, "ads": 0.5}, default_limit=10.0),
)


@contextmanager
def page_of(registry: CollectorRegistry) -> Iterator[str]:
    """Serve a registry's metrics; give `host:port`."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve whatever `answer` writes; give `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):  # Whoever asked may have left.
                answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def saying(body: bytes, *, status: int = 200, **headers: str) -> Callable[..., None]:
    """Return what answers with this."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def listing(*addresses: str, **labels: str) -> Callable[..., None]:
    """Return what answers with a list of targets."""
    return saying(json.dumps([{"targets": list(addresses), "labels": labels}]).encode())


@dataclass
class Fleet:
    servers: list[Server] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    backend_pages: list[str] = field(default_factory=list)
    client_pages: list[str] = field(default_factory=list)

    @property
    def pages(self) -> list[str]:
        return [*self.backend_pages, *self.client_pages]

    def press(self, index: int, level: float) -> None:
        """Set a backend's utilization; at 2 and more SHEDDABLE is refused."""
        runtime = self.servers[index].runtime
        with runtime.lock:
            runtime.task.record_signal("test", level)

    @asynccontextmanager
    async def traffic(self, pause_seconds: float = 0.005) -> AsyncIterator[None]:
        """Keep sending from every client."""
        tasks = [asyncio.create_task(_send(channel, pause_seconds)) for channel in self.channels]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _send(channel: Channel, pause_seconds: float) -> None:
    call = channel.unary_unary(METHOD)
    levels = list(evenly.Criticality)
    customers = ("shop", "ads", "somebody")
    number = 0
    while True:
        number += 1
        with (
            contextlib.suppress(grpc.aio.AioRpcError),
            evenly.request_context(criticality=levels[number % 4], customer=customers[number % 3]),
        ):
            await call(b"x", timeout=5.0)
        await asyncio.sleep(pause_seconds)


async def _do(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await asyncio.sleep(0.002)
    return request


@asynccontextmanager
async def running_fleet(
    backends: int = 2, clients: int = 1, *, service: str = "search"
) -> AsyncIterator[Fleet]:
    """Run a fleet on this loop."""
    fleet = Fleet()
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for _ in range(backends):
            registry = CollectorRegistry()
            observer = PrometheusObserver(
                service=service, customers=["shop", "ads"], registry=registry
            )
            server = evenly.grpc.server(config=BackendConfig(task=TASK), observer=observer)
            handlers = {"Do": grpc.unary_unary_rpc_method_handler(_do)}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(SERVICE, handlers),)
            )
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, None)
            observer.watch_backend(server.runtime)
            fleet.servers.append(server)
            fleet.backend_pages.append(stack.enter_context(page_of(registry)))
            addresses.append(f"127.0.0.1:{port}")
        for _ in range(clients):
            registry = CollectorRegistry()
            observer = PrometheusObserver(service=service, registry=registry)
            channel = await stack.enter_async_context(
                evenly.grpc.channel(f"static:{','.join(addresses)}", observer=observer)
            )
            observer.watch_client(channel)
            fleet.channels.append(channel)
            fleet.client_pages.append(stack.enter_context(page_of(registry)))
        yield fleet
