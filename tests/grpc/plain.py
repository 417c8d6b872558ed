"""Servers that know nothing of evenly: plain `grpc.aio`, with bytes for messages.

What an evenly backend would say, a test says through `trailers` or in a handler of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio

import evenly.grpc
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason, Request
from evenly.grpc.client.channel import Channel
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig

SERVICE = "test.Echo"
UNARY_UNARY = f"/{SERVICE}/UnaryUnary"
UNARY_STREAM = f"/{SERVICE}/UnaryStream"
STREAM_UNARY = f"/{SERVICE}/StreamUnary"
STREAM_STREAM = f"/{SERVICE}/StreamStream"

Context: TypeAlias = grpc.aio.ServicerContext
Trailers = tuple[tuple[str, str], ...]

OVERLOADED: Trailers = (("evenly-reject", "overloaded"),)
DONT_RETRY: Trailers = (("evenly-reject", "dont-retry"),)
QUOTA: Trailers = (("evenly-reject", "quota"),)


@dataclass
class Arrival:
    """Be what a server saw of one call."""

    method: str
    metadata: dict[str, str | bytes]
    seconds_left: float | None


async def echo(request: bytes, context: Context) -> bytes:
    return request


async def thrice(request: bytes, context: Context) -> AsyncIterator[bytes]:
    for _ in range(3):
        yield request


async def joined(requests: AsyncIterator[bytes], context: Context) -> bytes:
    return b"".join([request async for request in requests])


async def echo_each(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


class PlainBackend:
    """Serve the four kinds of call; each can be replaced while it serves."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.arrivals: list[Arrival] = []
        self.unary_unary: Callable[[bytes, Context], Any] = echo
        self.unary_stream: Callable[[bytes, Context], AsyncIterator[bytes]] = thrice
        self.stream_unary: Callable[[AsyncIterator[bytes], Context], Any] = joined
        self.stream_stream: Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]] = (
            echo_each
        )
        self.refuses_with: Trailers | None = None
        """With what to refuse every call before it is read; `None` to serve."""
        self.on_refused: Callable[[], None] = lambda: None
        self.trailers: Trailers = ()
        self.server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def requests(self) -> int:
        return len(self.arrivals)

    async def start(
        self,
        *,
        credentials: grpc.ServerCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
        also: Callable[[grpc.aio.Server], None] | None = None,
    ) -> None:
        """Listen, on the same port as the last time if there was one."""
        self.server = server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
        handlers = {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(self._unary_unary),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(self._unary_stream),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(self._stream_unary),
            "StreamStream": grpc.stream_stream_rpc_method_handler(self._stream_stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if also is not None:
            also(server)
        if credentials is None:
            self.port = server.add_insecure_port(self.address)
        else:
            self.port = server.add_secure_port(self.address, credentials)
        await server.start()

    async def stop(self, grace: float | None = None) -> None:
        """Stop; with `None` what is under way is cut off, as by a kill."""
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop(grace)

    async def _arrive(self, method: str, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        self.arrivals.append(Arrival(method, metadata, context.time_remaining()))
        context.set_trailing_metadata(self.trailers)
        if self.refuses_with is not None:
            code = grpc.StatusCode.UNAVAILABLE
            if ("evenly-reject", "quota") in self.refuses_with:
                code = grpc.StatusCode.RESOURCE_EXHAUSTED
            trailers = (*self.refuses_with, *self.trailers)
            self.on_refused()
            await context.abort(code, "refused", trailers)

    async def _unary_unary(self, request: bytes, context: Context) -> bytes:
        await self._arrive(UNARY_UNARY, context)
        return await self.unary_unary(request, context)  # type: ignore[no-any-return]

    async def _unary_stream(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        await self._arrive(UNARY_STREAM, context)
        async for response in self.unary_stream(request, context):
            yield response

    async def _stream_unary(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        await self._arrive(STREAM_UNARY, context)
        return await self.stream_unary(requests, context)  # type: ignore[no-any-return]

    async def _stream_stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        await self._arrive(STREAM_STREAM, context)
        async for response in self.stream_stream(requests, context):
            yield response


@contextlib.asynccontextmanager
async def plain_backends(count: int, **options: Any) -> AsyncIterator[list[PlainBackend]]:
    """Serve with so many of them, each on a free port."""
    backends = [PlainBackend() for _ in range(count)]
    try:
        for backend in backends:
            await backend.start(**options)
        yield backends
    finally:
        for backend in backends:
            await backend.stop()


@contextlib.asynccontextmanager
async def silent_listener() -> AsyncIterator[str]:
    """Accept connections and never say a word, as a stopped process does."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


def target(*backends: PlainBackend) -> str:
    return "static:" + ",".join(backend.address for backend in backends)


class Listed:
    """Be a discovery that says what the test says."""

    def __init__(self, *backends: PlainBackend | str) -> None:
        self._lists: asyncio.Queue[tuple[Backend, ...]] = asyncio.Queue()
        if backends:
            self.say(*backends)

    def say(self, *backends: PlainBackend | str) -> None:
        addresses = [one if isinstance(one, str) else one.address for one in backends]
        self._lists.put_nowait(tuple(Backend(address) for address in addresses))

    async def watch(self) -> AsyncIterator[Sequence[Backend]]:
        while True:
            yield await self._lists.get()


QUICK = HealthConfig(
    check_seconds=0.1,
    connect_jitter_seconds=0.01,
    backoff_first_seconds=0.05,
    backoff_max_seconds=0.2,
)
"""Everything ten to twenty times as fast as it is in earnest."""


def quick(
    *,
    task: ClientTaskConfig | None = None,
    health: HealthConfig = QUICK,
    is_probing: bool = False,
    **config: Any,
) -> ClientConfig:
    task = ClientTaskConfig() if task is None else task
    return ClientConfig(
        task=replace(task, membership=MembershipConfig(health=health)),
        probe=ProbeConfig(is_on=is_probing),
        **config,
    )


class Counts(Observer):
    """Count what the core decides."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.finished: list[Outcome] = []
        self.refused: list[Reason] = []
        self.retries_refused = 0

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun.append(number)

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.finished.append(outcome)

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.refused.append(reason)

    def retry_refused(self, request: Request) -> None:
        self.retries_refused += 1


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def settled(channel: Channel) -> None:
    """Wait until no attempt is active, and say so if that never comes."""
    gc.collect()
    await until(lambda: channel.snapshot().active == 0)
    assert [connection for connection in connections(channel) if connection.active] == []


def connections(channel: Channel) -> list[Any]:
    return list(channel.service.connections.values())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def served(
    count: int = 1, **options: Any
) -> AsyncIterator[tuple[list[PlainBackend], Channel]]:
    """Serve with so many backends, and open a channel to them."""
    async with (
        plain_backends(count) as backends,
        evenly.grpc.channel(target(*backends), **options) as channel,
    ):
        yield backends, channel


KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def begin(channel: grpc.aio.Channel, kind: str, **options: Any) -> Any:
    """Begin a call of one of the four kinds, with the message or messages `b"hello"`."""
    match kind:
        case "unary_unary":
            return channel.unary_unary(UNARY_UNARY)(b"hello", **options)
        case "unary_stream":
            return channel.unary_stream(UNARY_STREAM)(b"hello", **options)
        case "stream_unary":
            return channel.stream_unary(STREAM_UNARY)(iter([b"hel", b"lo"]), **options)
        case _:
            return channel.stream_stream(STREAM_STREAM)(iter([b"hel", b"lo"]), **options)


ANSWERS = {
    "unary_unary": [b"hello"],
    "unary_stream": [b"hello"] * 3,
    "stream_unary": [b"hello"],
    "stream_stream": [b"hel", b"lo"],
}


async def answer(call: Any) -> list[bytes]:
    """Return every message of a call's answer."""
    if isinstance(call, (grpc.aio.UnaryUnaryCall, grpc.aio.StreamUnaryCall)):
        return [await call]
    return [message async for message in call]
