"""Make a backend of any `grpc.aio` server: what `evenly.grpc.server` does, as an interceptor.

    guard = evenly.grpc.interceptor()
    server = grpc.aio.server(interceptors=[guard, …])          # the first, see below
    add_SearchServicer_to_server(Search(), server)
    port = server.add_insecure_port("0.0.0.0:50051")
    guard.attach(server, f"0.0.0.0:{port}")                     # health, ORCA, probes by UDP
    await evenly.grpc.serve(server, interceptor=guard)

It has to be the first of several interceptors.  It hands requests on unparsed until they are
admitted, and an interceptor before it would be shown bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import final

import grpc
import grpc.aio

from evenly.core.observer import NO_OBSERVER, Observer
from evenly.grpc.common.names import is_exempt, split_address
from evenly.grpc.server.handlers import HandlerWrapper
from evenly.grpc.server.services import Health, Orca
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig

__all__ = ["Interceptor", "interceptor"]


@final
class Interceptor(grpc.aio.ServerInterceptor):
    """Admit, meter and report for one server; make it with `interceptor`."""

    def __init__(
        self, runtime: BackendRuntime, *, executor: Executor | None = None, health: bool = True
    ) -> None:
        self.runtime = runtime
        """What drives the backend's decisions; `runtime.snapshot()` shows what it does."""
        self.wrapper = HandlerWrapper(runtime, executor=executor)
        self.is_attached = False
        self.starts_as_lame_duck = False
        """Whether somebody else announces that it is healthy: `serve`, after the warm-up."""
        self._health = Health(runtime) if health else None
        self._orca = Orca(runtime)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler with what evenly puts around it."""
        handler = await continuation(handler_call_details)
        if not self.runtime.is_started:
            # Also for a health check: whoever waits for SERVING would never send a request.
            self.start()
            if not self.starts_as_lame_duck:
                self.announce_healthy()
        if handler is None or is_exempt(handler_call_details.method):
            return handler
        return self.wrapper.wrap(handler)

    def attach(
        self, server: grpc.aio.Server, address: str | None = None, *, services: Iterable[str] = ()
    ) -> None:
        """Serve health and load reports too, and answer probes; before the server is started.

        `address` is where it listens, with the port that `add_insecure_port` returned; without it
        there are no probes by UDP.  `services` are names that health checks may ask for besides "".
        """
        if address is not None:
            self.bind_probe(address)
        self.add_names(services)
        if not self.is_attached:
            self.is_attached = True
            if self._health is not None:
                self._health.add_to(server)
            self._orca.add_to(server)

    def bind_probe(self, address: str) -> None:
        """Answer probes by UDP for a service that listens here."""
        host_and_port = split_address(address)
        if host_and_port is not None:
            self.runtime.bind_probe(*host_and_port)

    def add_names(self, services: Iterable[str]) -> None:
        """Let health checks ask for these services by name."""
        if self._health is not None:
            self._health.add_names(services)

    def leave_health_to_another(self) -> None:
        """Do not serve `grpc.health.v1`: somebody else does."""
        self._health = None

    def start(self) -> None:
        """Begin to read the system and to answer probes, on the running loop."""
        self.runtime.start(asyncio.get_running_loop())

    def announce_healthy(self) -> bool:
        """Ask clients to send; return False if the shutdown has begun."""
        self.start()
        return self.runtime.announce_healthy()

    def end_streams(self) -> None:
        """End the watches and reports that are under way: a server that stops waits for them."""
        if self._health is not None:
            self._health.close()
        self._orca.close()

    def stop(self) -> None:
        """Leave nothing behind; after the server has stopped."""
        self.end_streams()
        self.runtime.stop()


def interceptor(
    *,
    config: BackendConfig | None = None,
    observer: Observer = NO_OBSERVER,
    migration_thread_pool: Executor | None = None,
    health: bool = True,
) -> Interceptor:
    """Return an interceptor that makes a backend of the `grpc.aio` server that it is given to.

    `migration_thread_pool` is the server's, where it has handlers that are plain functions.
    `health=False` leaves `grpc.health.v1` to you.
    """
    runtime = BackendRuntime(config, observer=observer)
    return Interceptor(runtime, executor=migration_thread_pool, health=health)
