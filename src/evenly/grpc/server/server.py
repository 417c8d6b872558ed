"""A `grpc.aio.Server` that is a backend: it admits, meters, reports and says when it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, final

import grpc
import grpc.aio

from evenly.core.observer import NO_OBSERVER, Observer
from evenly.grpc.common.names import HEALTH_SERVICE, is_exempt, name_of, split_address
from evenly.grpc.common.options import server_options
from evenly.grpc.server.interceptor import Interceptor
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig

__all__ = ["Server", "server"]

_LOGGER = logging.getLogger("evenly.grpc")
# What generated code makes: its methods never change.
_Dictionary: Final = type(grpc.method_handlers_generic_handler("", {}))


@final
class _Handlers(grpc.GenericRpcHandler):
    """Find the handler of a method, wrapped: all that were added to a server, as one.

    Those that were registered by name are here too, and not with gRPC, which would wait for each of
    them by itself: grpc.aio takes up all of these waits anew for each request (1 µs a method).
    """

    def __init__(
        self, wrap: Callable[[grpc.RpcMethodHandler], grpc.RpcMethodHandler] | None
    ) -> None:
        self._wrap = wrap
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, grpc.RpcMethodHandler] = {}
        self._known: dict[str, grpc.RpcMethodHandler] = {}

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add some that are asked in turn."""
        self._generic.extend(handlers)
        self._known = {}

    def register(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Add the methods of a service, which are found before what `add` added."""
        self._registered.update({f"/{service}/{name}": made for name, made in handlers.items()})
        self._known = {}

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        """Return the handler of a method."""
        method = handler_call_details.method
        known = self._known.get(method)
        return self._find(method, handler_call_details) if known is None else known

    def _find(self, method: str, details: Any) -> grpc.RpcMethodHandler | None:
        found = self._registered.get(method)
        is_fixed = True
        for generic in () if found is not None else self._generic:
            # One that is not a dictionary may find another handler the next time.
            is_fixed = is_fixed and type(generic) is _Dictionary
            found = generic.service(details)
            if found is not None:
                break
        if found is None:
            return None
        if self._wrap is not None and not is_exempt(method):
            found = self._wrap(found)
        if is_fixed:
            self._known[method] = found
        return found


@final
class Server(grpc.aio.Server):
    """Be what `grpc.aio.server` returns, with evenly around its handlers; made by `server`."""

    def __init__(
        self, inner: grpc.aio.Server, guard: Interceptor, *, wraps: bool, has_health: bool
    ) -> None:
        self._inner = inner
        self.guard = guard
        self._has_health = has_health
        self._is_started = False
        self._handlers = _Handlers(guard.wrapper.wrap if wraps else None)
        inner.add_generic_rpc_handlers((self._handlers,))

    @property
    def runtime(self) -> BackendRuntime:
        """What drives the backend's decisions; `runtime.snapshot()` shows what it does."""
        return self.guard.runtime

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        """Register handlers, before the server is started."""
        handlers = tuple(generic_rpc_handlers)
        for handler in handlers:
            self._learn_name(name_of(handler))
        self._handlers.add(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Register the handlers of one service, before the server is started."""
        if self._is_started:
            self._inner.add_registered_method_handlers(service_name, {})  # gRPC warns, and no more.
            return
        self._learn_name(service_name)
        self._handlers.register(service_name, method_handlers)

    def add_insecure_port(self, address: str) -> int:
        """Listen here, and answer probes by UDP; return the port."""
        return self._bound(address, self._inner.add_insecure_port(address))

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Listen here with TLS, and answer probes by UDP; return the port."""
        return self._bound(address, self._inner.add_secure_port(address, server_credentials))

    async def start(self) -> None:
        """Start, and ask clients to send.  `evenly.grpc.serve` does this after the warm-up."""
        await self.start_as_lame_duck()
        self.announce_healthy()

    async def start_as_lame_duck(self) -> None:
        """Start, and serve who sends nevertheless; `announce_healthy` is up to you."""
        self.guard.attach(self._inner)
        self.guard.start()
        self._is_started = True
        await self._inner.start()

    def announce_healthy(self) -> bool:
        """Ask clients to send; return False if the shutdown has begun."""
        return self.guard.announce_healthy()

    async def stop(self, grace: float | None) -> None:
        """Stop: tell clients first if they do not know, and give requests so many seconds."""
        self.runtime.enter_lame_duck()
        self.guard.end_streams()
        try:
            await self._inner.stop(grace)
        finally:
            self.guard.stop()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; return whether the time was up before."""
        return await self._inner.wait_for_termination(timeout)  # type: ignore[no-any-return]

    def _bound(self, address: str, port: int) -> int:
        host_and_port = split_address(address)
        if host_and_port is not None:
            self.runtime.bind_probe(host_and_port[0], port)
        return port

    def _learn_name(self, name: str | None) -> None:
        if name is None:
            return
        if name == HEALTH_SERVICE and self._has_health:
            self._has_health = False
            self.guard.leave_health_to_another()
            _LOGGER.warning(
                "%s was registered, and answers instead of evenly's own: clients hear from it, and "
                "not from evenly, whether this backend is a lame duck.  Leave yours out, or say "
                "evenly.grpc.server(health=False) if it is meant so.",
                HEALTH_SERVICE,
            )
        self.guard.add_names((name,))


def server(  # noqa: PLR0917 -- gRPC's own order
    migration_thread_pool: Executor | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    config: BackendConfig | None = None,
    observer: Observer = NO_OBSERVER,
    health: bool = True,
) -> Server:
    """Return a `grpc.aio.Server` that is a backend; the first six arguments are gRPC's own.

    `health=False` leaves `grpc.health.v1` to you.
    """
    runtime = BackendRuntime(config, observer=observer)
    guard = Interceptor(runtime, executor=migration_thread_pool, health=health)
    interceptors = tuple(interceptors or ())
    # Interceptors make handlers of their own, per call, which have to be inside ours.  Without any,
    # handlers are wrapped when they are registered, and a call has nothing to look up.
    if interceptors:
        interceptors = (guard, *interceptors)
    inner = grpc.aio.server(
        migration_thread_pool=migration_thread_pool,
        interceptors=interceptors,
        options=server_options(options),
        maximum_concurrent_rpcs=maximum_concurrent_rpcs,
        compression=compression,
    )
    made = Server(inner, guard, wraps=not interceptors, has_health=health)
    if handlers:
        made.add_generic_rpc_handlers(handlers)
    return made
