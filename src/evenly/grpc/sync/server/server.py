"""A threaded `grpc.Server` that is a backend: it admits, meters, reports and tells when it goes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, final

import grpc

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.errors import ConfigError
from evenly.grpc.common.names import HEALTH_SERVICE, is_exempt, name_of, split_address
from evenly.grpc.common.options import server_options
from evenly.grpc.sync import background
from evenly.grpc.sync.background import Background
from evenly.grpc.sync.server.handlers import HandlerWrapper
from evenly.grpc.sync.server.interpreter import InterpreterClock
from evenly.grpc.sync.server.reception import Reception
from evenly.grpc.sync.server.services import Health, Orca
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.signals.cpu import effective_cores

__all__ = ["Server", "server"]

_LOGGER = logging.getLogger("evenly.grpc")


@final
class Guard(grpc.ServerInterceptor):
    """Admit requests as they arrive, and wrap their handlers; the first of all interceptors."""

    def __init__(self, wrapper: HandlerWrapper) -> None:
        self.reception = wrapper.reception
        self._wrap = wrapper.wrap

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler with what evenly puts around it, or one that refuses."""
        handler = continuation(handler_call_details)
        if handler is None or is_exempt(handler_call_details.method):
            return handler
        wrapped, is_received = self._wrap(handler)
        refusing = None
        if is_received:
            refusing = self.reception.admit(handler_call_details.invocation_metadata)
        return wrapped if refusing is None else refusing


@final
class Server(grpc.Server):
    """Be what `grpc.server` returns, with evenly around its handlers; made by `server`."""

    def __init__(
        self,
        inner: grpc.Server,
        runtime: BackendRuntime,
        guard: Guard,
        own_pool: Executor | None,
        *,
        health: bool,
    ) -> None:
        self.runtime = runtime
        """What drives the backend's decisions; `runtime.snapshot()` shows what it does."""
        self.guard = guard
        self._inner = inner
        self._own_pool = own_pool
        self._health = Health(runtime) if health else None
        self._orca = Orca(runtime)
        self._background: Background | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._is_stopping = False

    @property
    def background(self) -> Background:
        """The loop that it runs on, once it was started."""
        if self._background is None:
            raise ValueError("the server has not been started")
        return self._background

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        """Register handlers."""
        handlers = tuple(generic_rpc_handlers)
        for handler in handlers:
            self._learn_name(name_of(handler))
        self._inner.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Register the handlers of one service, before the server is started."""
        if self._background is None:  # Once it was started gRPC warns, and serves them not.
            self._learn_name(service_name)
        self._inner.add_registered_method_handlers(service_name, dict(method_handlers))

    def add_insecure_port(self, address: str) -> int:
        """Listen here, and answer probes by UDP; return the port."""
        return self._bound(address, self._inner.add_insecure_port(address))

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Listen here with TLS, and answer probes by UDP; return the port."""
        return self._bound(address, self._inner.add_secure_port(address, server_credentials))

    def start(self) -> None:
        """Start, and ask clients to send.  `evenly.grpc.sync.serve` does this after the warm-up."""
        self.start_as_lame_duck()
        self.announce_healthy()

    def start_as_lame_duck(self) -> None:
        """Start, and serve who sends nevertheless; `announce_healthy` is up to you."""
        if self._background is not None:
            raise ValueError("Cannot start already-started server!")
        if self._health is not None:
            self._health.add_to(self._inner)
        self._orca.add_to(self._inner)
        self._background = background.hold()
        self._orca.start(self._background)
        self._background.run(self.runtime.start, self._background.loop)
        self._inner.start()

    def announce_healthy(self) -> bool:
        """Ask clients to send; return False if the shutdown has begun."""
        return self.background.run(self.runtime.announce_healthy)

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere, for good; whoever sends nevertheless is served."""
        self.background.run(self.runtime.enter_lame_duck)

    def stop(self, grace: float | None) -> threading.Event:
        """Stop: tell clients first if they do not know, and give requests so many seconds.

        The event that it returns is set when all is over; without `grace` that is now.
        """
        if self._background is None:
            self._stopped.set()
            return self._stopped
        with self._lock:
            is_first = not self._is_stopping
            self._is_stopping = True
        if is_first:
            self._background.run(self._leave)
        inner_stopped = self._inner.stop(grace)
        if is_first and grace is None:
            self._clean(inner_stopped)
        elif is_first:
            threading.Thread(target=self._clean, args=(inner_stopped,), name="evenly-stop").start()
        return self._stopped

    def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; return whether the time was up before."""
        return not self._stopped.wait(timeout)

    def _leave(self) -> None:
        self.runtime.enter_lame_duck()
        if self._health is not None:
            self._health.end_streams()
        self._orca.end_streams()

    def _clean(self, inner_stopped: threading.Event) -> None:
        inner_stopped.wait()
        self.background.run(self.runtime.stop)
        if self._health is not None:
            self._health.close()
        self._orca.close()
        if self._own_pool is not None:
            self._own_pool.shutdown(wait=False)
        background.release()
        self._stopped.set()

    def _bound(self, address: str, port: int) -> int:
        host_and_port = split_address(address)
        if host_and_port is not None:
            host = host_and_port[0]
            if self._background is None:
                self.runtime.bind_probe(host, port)
            else:
                self._background.run(self.runtime.bind_probe, host, port)
        return port

    def _learn_name(self, name: str | None) -> None:
        if name is None or self._health is None:
            return
        if name != HEALTH_SERVICE:
            self._health.add_names((name,))
            return
        if self._background is not None:
            return  # Ours is there already, and gRPC takes the first.
        self._health = None
        _LOGGER.warning(
            "%s was registered, and answers instead of evenly's own: clients hear from it, and "
            "not from evenly, whether this backend is a lame duck.  Leave yours out, or say "
            "evenly.grpc.sync.server(health=False) if it is meant so.",
            HEALTH_SERVICE,
        )


def server(  # noqa: PLR0917 -- gRPC's own order
    thread_pool: Executor | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    max_workers: int | None = None,
    config: BackendConfig | None = None,
    observer: Observer = NO_OBSERVER,
    health: bool = True,
) -> Server:
    """Return a `grpc.Server` that is a backend; the first six arguments are gRPC's own.

    Without a `thread_pool` it has one of its own, with `max_workers` threads.  `health=False`
    leaves `grpc.health.v1` to you.  `observer` is called by several threads, one at a time.
    """
    if thread_pool is not None and max_workers is not None:
        raise ConfigError("max_workers is for a server without a thread_pool")
    own_pool: Executor | None = None
    if thread_pool is None:
        thread_pool = own_pool = ThreadPoolExecutor(max_workers, "evenly-handler")
    # The limit is kept there: gRPC would refuse after the request was admitted, and say nothing.
    reception = Reception(thread_pool, most=maximum_concurrent_rpcs)
    config = BackendConfig() if config is None else config
    if config.task is None:
        config = replace(config, task=_default_task())
    runtime = BackendRuntime(
        config,
        observer=observer,
        lock=threading.RLock(),
        waiting=reception.waiting,
        thread_clock=InterpreterClock(),
    )
    guard = Guard(HandlerWrapper(runtime, reception))
    inner = grpc.server(
        reception,
        interceptors=(guard, *(interceptors or ())),
        options=server_options(options),
        compression=compression,
    )
    made = Server(inner, runtime, guard, own_pool, health=health)
    if handlers:
        made.add_generic_rpc_handlers(handlers)
    return made


def _default_task() -> BackendTaskConfig:
    return BackendTaskConfig(
        # Threads take turns in the interpreter: a process is about one core.
        cores=min(1.0, effective_cores()),
    )
