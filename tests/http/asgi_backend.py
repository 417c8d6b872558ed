"""A backend of ours on uvicorn in this process, and a client that knows nothing but sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.utilization_config import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.core.request import Outcome, Reason, Request
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig

SOON = 20.0  # Nothing in these tests takes so long, unless it hangs.
_STEEP = (Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0), Ramp(4.0, 5.0))
_SIGNALS = {
    **default_signals(),
    "test": SignalConfig(ramps=_STEEP, decay_seconds=0.001, expiry_seconds=3600.0),
}
TASK = BackendTaskConfig(
    quiet_seconds=0.0,
    utilization=UtilizationConfig(signals=_SIGNALS),
    limits_queue=False,  # Only what a test presses on refuses.
)
QUICK = BackendConfig(task=TASK)
OURS = (("user-agent", "test evenly/1"),)


class Ledger(Observer):
    """Note how every admitted request ended."""

    def __init__(self) -> None:
        self.admitted: list[Request] = []
        self.outcomes: list[Outcome] = []
        self.costs: list[float] = []
        self.rejected: list[Reason] = []

    def request_admitted(self, request: Request) -> None:
        self.admitted.append(request)

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.rejected.append(reason)

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.outcomes.append(outcome)
        self.costs.append(cost)


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""

    def get(self, name: str) -> str | None:
        """Return the one value of a header; names in lower case."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    methods: list[str] = field(default_factory=list)

    async def get(self, path: str = "/", headers: Iterable[tuple[str, str]] = ()) -> Answer:
        await self.send("GET", path, headers)
        return await self.answer()

    async def post(
        self, body: bytes, path: str = "/", headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        await self.send("POST", path, (*headers, ("content-length", str(len(body)))), body)
        return await self.answer()

    async def send(
        self,
        method: str,
        path: str = "/",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.methods.append(method)
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Answer:
        async with asyncio.timeout(SOON):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines[1:] if line]
        return Answer(int(lines[0].split()[1]), [(key, value) for key, value in pairs])

    async def answer(self) -> Answer:
        """Read one response."""
        answer = await self.head()
        async with asyncio.timeout(SOON):
            if self.methods.pop(0) == "HEAD" or answer.status in {204, 304}:
                return answer
            length = answer.get("content-length")
            if length is not None:
                answer.body = await self.reader.readexactly(int(length))
            else:
                while chunk := await self.chunk():
                    answer.body += chunk
        return answer

    async def chunk(self) -> bytes:
        """Read one chunk; nothing at the end."""
        async with asyncio.timeout(SOON):
            size = int(await self.reader.readline(), 16)
            data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def is_closed(self) -> bool:
        """Wait for the other side to close, and say whether it has."""
        async with asyncio.timeout(SOON):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def vanish(self) -> None:
        """Cut the connection, as a process does that is killed."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Backend:
    app: Middleware
    ledger: Ledger
    port: int
    clients: list[Client]

    @property
    def runtime(self) -> BackendRuntime:
        return self.app.runtime

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def get(self, path: str = "/", headers: Iterable[tuple[str, str]] = ()) -> Answer:
        """Ask on a connection of its own."""
        return await (await self.connect()).get(path, headers)

    async def outcome(self) -> Outcome:
        """Return how the one request ended, once it has."""
        return (await self.ended(1))[0]

    async def ended(self, count: int) -> list[Outcome]:
        await until(lambda: len(self.ledger.outcomes) >= count)
        await asyncio.sleep(0.01)  # Whoever ended it a second time would have by now.
        assert len(self.ledger.outcomes) == len(self.ledger.admitted) == count
        assert self.runtime.active == self.runtime.snapshot().task.active == 0
        assert self.runtime.snapshot().waiting == 0
        return self.ledger.outcomes

    async def press(self, level: float) -> None:
        """Set the signal that nobody else records: at 2 SHEDDABLE is refused, at 5 everything."""
        for _ in range(2):  # The value is an average over time.
            with self.runtime.lock:
                self.runtime.task.record_signal("test", level)
            await asyncio.sleep(0.02)


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def backend(
    app: Any, *, config: BackendConfig = QUICK, options: Any = None, **arguments: Any
) -> AsyncIterator[Backend]:
    """Serve `app` behind the middleware; `options` are uvicorn's."""
    ledger = Ledger()
    guard = Middleware(app, config=config, observer=ledger, **arguments)
    async with serving(guard, **(options or {})) as port:
        made = Backend(guard, ledger, port, [])
        try:
            yield made
        finally:
            for client in made.clients:
                await client.close()


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[int]:
    """Run uvicorn; its port."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Applications raise here.
    chosen = {"http": "httptools", "ws": "none", "access_log": False, **options}
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **chosen))
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(SOON):
            while not server.started:
                if running.done():
                    break
                await asyncio.sleep(0.002)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        async with asyncio.timeout(SOON):
            await running
        listener.close()


# Applications.


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answer, without having read anything."""
    assert scope["type"] == "http"
    await respond(send, b"hello")


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the whole body."""
    assert scope["type"] == "http"
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    await respond(send, body)


async def respond(
    send: Any, body: bytes, *, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
