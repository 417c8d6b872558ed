"""Backends that know nothing of evenly: a few lines of HTTP/1.1 on asyncio's streams.

What an evenly backend would say, a test says in a handler of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl as tls
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.http.client.httpx_transport import Transport
from evenly.http.client.service import Service
from evenly.http.client.session import Session
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig
from evenly.wire.load_header import format_load

OVERLOADED = ("evenly-reject", "overloaded")
DONT_RETRY = ("evenly-reject", "dont-retry")
QUOTA = ("evenly-reject", "quota")
LOAD = ("evenly-load", format_load(LoadReport(boot=1, sequence=1)))


@dataclass
class Arrival:
    """Be what a backend saw of one request."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)
    connection: int = 0
    """Which connection it came on, from 1."""
    is_given_up: bool = False
    """Whether the client closed the connection while `hang` served."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    def get(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None


Handler = Callable[[Arrival], Awaitable[bytes | None]]


def reply(
    status: int = 200,
    body: bytes = b"",
    *headers: tuple[str, str],
    reason: str = "Reason",
    length: int | None = None,
) -> bytes:
    """Return a response; `length` lies about its body."""
    lines = [
        f"HTTP/1.1 {status} {reason}",
        f"content-length: {len(body) if length is None else length}",
    ]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def echo(arrival: Arrival) -> bytes:
    return reply(200, arrival.body or arrival.target.encode())


async def hang(arrival: Arrival) -> None:
    """Answer nothing, until the client has gone."""
    try:
        await arrival.reader.read(1)
    finally:
        arrival.is_given_up = True


async def cut(arrival: Arrival) -> None:
    """Break the connection without an answer."""
    arrival.writer.transport.abort()


class RawBackend:
    """Serve with a handler that returns the bytes of a response, or `None` to close."""

    def __init__(self, handler: Handler = echo) -> None:
        self.handler = handler
        self.health: Handler = echo
        self.port = 0
        self.arrivals: list[Arrival] = []
        self.checks = 0
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def requests(self) -> int:
        return len(self.arrivals)

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        """Listen, on the same port as the last time if there was one."""
        while self._server is None:
            try:
                self._server = await asyncio.start_server(
                    self._accept, "127.0.0.1", self.port, ssl=ssl
                )
            except OSError:
                if self.port == 0:
                    raise
                await asyncio.sleep(0.05)  # Somebody's connection has got the port meanwhile.
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop at once: what is under way is cut off, as by a kill."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = dict(self._tasks)
        for task, writer in tasks.items():
            writer.transport.abort()  # Here, because a task may not have begun.
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer, self.accepted))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        """Serve one connection."""
        try:
            while (arrival := await read_request(reader, writer)) is not None:
                arrival.connection = number
                handler = self.handler
                if arrival.target == "/healthz":
                    self.checks += 1
                    handler = self.health
                else:
                    self.arrivals.append(arrival)
                answer = await handler(arrival)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Arrival | None:
    """Return the next request, or `None` at the end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head[:-4].split("\r\n")
    method, target, _ = line.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    arrival = Arrival(method, target, headers, b"", reader, writer)
    if arrival.get("transfer-encoding") is not None:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            arrival.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        arrival.body = await reader.readexactly(int(arrival.get("content-length") or 0))
    return arrival


@contextlib.asynccontextmanager
async def raw_backends(count: int, handler: Handler = echo) -> AsyncIterator[list[RawBackend]]:
    backends = [RawBackend(handler) for _ in range(count)]
    try:
        for backend in backends:
            await backend.start()
        yield backends
    finally:
        for backend in backends:
            await backend.stop()


def target(*backends: RawBackend) -> str:
    return "static:" + ",".join(backend.address for backend in backends)


class Listed:
    """Be a discovery that says what the test says."""

    def __init__(self, *addresses: str) -> None:
        self._lists: asyncio.Queue[tuple[Backend, ...]] = asyncio.Queue()
        if addresses:
            self.say(*addresses)

    def say(self, *addresses: str) -> None:
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


UNTHROTTLED = ClientTaskConfig(throttle=ThrottleConfig(name="off"))
"""For requests that are to be sent although those before failed."""


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

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun.append(number)

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.finished.append(outcome)

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.refused.append(reason)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def settled(service: Service) -> None:
    """Wait until no attempt is active, and say so if that never comes."""
    gc.collect()
    await until(lambda: service.runtime.task.snapshot().active == 0)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def served(
    count: int = 1, handler: Handler = echo, **options: Any
) -> AsyncIterator[tuple[list[RawBackend], Session, Counts]]:
    """Serve with so many backends, with a session to them."""
    counts = Counts()
    options.setdefault("config", quick(task=UNTHROTTLED))
    async with (
        raw_backends(count, handler) as backends,
        Session(target(*backends), observer=counts, **options) as session,
    ):
        yield backends, session, counts
        await settled(session.service)
        assert len(counts.begun) == len(counts.finished)


@contextlib.asynccontextmanager
async def transported(
    count: int = 1, handler: Handler = echo, **options: Any
) -> AsyncIterator[tuple[list[RawBackend], Transport, Counts]]:
    """Serve with so many backends, with a transport to them."""
    counts = Counts()
    options.setdefault("config", quick(task=UNTHROTTLED))
    async with (
        raw_backends(count, handler) as backends,
        Transport(target(*backends), observer=counts, **options) as transport,
    ):
        yield backends, transport, counts
        await settled(transport.service)
        assert len(counts.begun) == len(counts.finished)
