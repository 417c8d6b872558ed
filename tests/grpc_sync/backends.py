"""Backends of three makes with the same handlers: gRPC's own with threads and with a loop, ours."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

import evenly.grpc.sync
from evenly.grpc import ClientConfig, ProbeConfig
from evenly.runtime.backend_config import BackendConfig

SERVICE = "test.Service"
Anything = Any
"""What gRPC, which has no types, gives and takes."""
LONG_SECONDS = 30.0
"""Long enough for any machine: a test that takes it has failed."""


def method(name: str) -> str:
    return f"/{SERVICE}/{name}"


class Behavior:
    """What the backends of one test do; `held` handlers wait for `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.held = threading.Semaphore(0)
        """Released once for each handler that begins to wait."""
        self.seen: list[dict[str, Any]] = []
        """The metadata of each request."""

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.seen.append(dict(context.invocation_metadata()))
        context.set_trailing_metadata((("x-mine", "kept"),))
        return request

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode[request.decode()], "as you asked")
        raise AssertionError

    def raises(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        raise ZeroDivisionError(request.decode())

    def hold(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.held.release()
        assert self.release.wait(LONG_SECONDS)
        return request

    def count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    def count_and_fail(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.count(request, context)
        # gRPC's own server on an event loop loses an abort that meets the last message on its way,
        # and the call never ends: 28 of 6,000 with its own client too.
        time.sleep(0.05)
        context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    def count_and_hold(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.count(request, context)
        self.held.release()
        while context.is_active() and not self.release.wait(0.01):
            pass

    def concat(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return b"".join(requests)

    def chat(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield request.upper()


def generic_handler(behavior: Behavior) -> grpc.GenericRpcHandler:
    unary_unary = grpc.unary_unary_rpc_method_handler
    unary_stream = grpc.unary_stream_rpc_method_handler
    methods = {
        "Echo": unary_unary(behavior.echo),
        "Fail": unary_unary(behavior.fail),
        "Raise": unary_unary(behavior.raises),
        "Hold": unary_unary(behavior.hold),
        "Count": unary_stream(behavior.count),
        "CountAndFail": unary_stream(behavior.count_and_fail),
        "CountAndHold": unary_stream(behavior.count_and_hold),
        "Concat": grpc.stream_unary_rpc_method_handler(behavior.concat),
        "Chat": grpc.stream_stream_rpc_method_handler(behavior.chat),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


@contextlib.contextmanager
def plain_backend(
    behavior: Behavior, *handlers: grpc.GenericRpcHandler, port: int = 0
) -> Iterator[str]:
    """Serve with gRPC's own threaded server, which knows nothing of evenly."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
    server.add_generic_rpc_handlers((*handlers, generic_handler(behavior)))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait()
        behavior.release.set()


@contextlib.contextmanager
def plain_aio_backend(behavior: Behavior) -> Iterator[str]:
    """Serve with gRPC's own server on an event loop, in a thread of its own."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(futures.ThreadPoolExecutor(max_workers=64))
        server.add_generic_rpc_handlers((generic_handler(behavior),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    thread = threading.Thread(target=loop.run_forever, name="aio-backend")
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(LONG_SECONDS)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        behavior.release.set()
        asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(LONG_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def evenly_server(
    behavior: Behavior,
    *,
    config: BackendConfig | None = None,
    max_workers: int = 16,
    **options: Anything,
) -> Iterator[tuple[evenly.grpc.sync.Server, str]]:
    """Serve with the server that is tested."""
    server = evenly.grpc.sync.server(config=config, max_workers=max_workers, **options)
    server.add_generic_rpc_handlers((generic_handler(behavior),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        behavior.release.set()


@contextlib.contextmanager
def evenly_backend(behavior: Behavior) -> Iterator[str]:
    with evenly_server(behavior) as (_, address):
        yield address


@contextlib.contextmanager
def channel_to(*addresses: str, **options: Anything) -> Iterator[evenly.grpc.sync.Channel]:
    with evenly.grpc.sync.channel(f"static:{','.join(addresses)}", **options) as channel:
        grpc.channel_ready_future(channel).result(LONG_SECONDS)
        yield channel


WITHOUT_UDP = ClientConfig(probe=ProbeConfig(is_on=False))
"""Requests never wait for probes."""


def wait_until(is_true: Callable[[], object], what: str = "it") -> None:
    """Wait for what is about to happen in another thread."""
    give_up_at = time.monotonic() + LONG_SECONDS
    while not is_true():
        assert time.monotonic() < give_up_at, f"waited in vain for {what}"
        time.sleep(0.002)


def threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


def wait_for_threads(before: Counter[str]) -> None:
    """Wait until there are no others than these; of these, some may have ended."""
    wait_until(lambda: threads() <= before, f"{threads()} to be {before}")


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def active(channel: evenly.grpc.sync.Channel) -> int:
    return channel.snapshot().active


def code_of(error: BaseException) -> grpc.StatusCode:
    assert isinstance(error, grpc.RpcError)
    assert isinstance(error, grpc.Call)
    return cast("Any", error).code()
