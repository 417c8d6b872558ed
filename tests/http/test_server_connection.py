"""What a stranger's connection may cost: bytes, time, descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evenly.core.clock import Clock
from evenly.errors import ConfigError, UsageError
from evenly.http.serve.connection_limits import ConnectionLimits
from evenly.http.serve.room import Door, Room
from evenly.http.serve.serve import serve
from evenly.http.serve.server_connection import ServerConnection
from evenly.http.server.asgi import App, Receive, Scope, Send
from evenly.runtime.backend_config import BackendConfig
from evenly.testing import ManualClock
from tests.http.serve_app import app
from tests.http.serve_process import SOON, until
from tests.http.test_serve import QUICK

HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n"
END = b"\r\n"


@asynccontextmanager
async def serving(
    limits: ConnectionLimits | None = None,
    config: BackendConfig = QUICK,
    app: App = app,
    **options: Any,
) -> AsyncIterator[int]:
    ports: asyncio.Queue[int] = asyncio.Queue()
    task = asyncio.ensure_future(
        serve(
            app,
            port=0,
            config=config,
            grace_seconds=0.1,
            limits=limits,
            log_config=None,
            on_listening=lambda url: ports.put_nowait(int(url.rpartition(":")[2])),
            **options,
        )
    )
    try:
        yield await asyncio.wait_for(ports.get(), SOON)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answer(port: int, *parts: bytes) -> bytes:
    """Send the parts, and return what came until the server had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(SOON):
                while data := await reader.read(65_536):
                    found += data
    finally:
        writer.transport.abort()
    return found


def headers(count: int, size: int = 10) -> bytes:
    return b"".join(b"x-%d: %s\r\n" % (index, b"v" * size) for index in range(count))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(headers(254), b"200", id="as many headers as may be"),
        pytest.param(headers(255), b"431", id="one header too many"),
        pytest.param(headers(60, 1_000), b"200", id="large"),
        pytest.param(headers(66, 1_000), b"431", id="too large, in one part"),
    ],
)
async def test_a_head_that_is_too_large_is_refused(sent: bytes, status: bytes) -> None:
    async with serving() as port:
        found = await answer(port, HEAD + sent + b"connection: close\r\n" + END)

    assert found.split(b" ")[1] == status


async def test_a_head_without_an_end_is_refused_at_its_bound() -> None:
    async with serving() as port:
        found = await answer(port, HEAD + b"x: ", *[b"v" * 8_192] * 64)

    assert found == b"" or found.split(b" ")[1] == b"431"


async def test_a_trailer_without_an_end_is_cut_off() -> None:
    begin = (
        b"POST /?3600 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: "
    )
    async with serving() as port:
        assert await answer(port, begin, *[b"v" * 8_192] * 64) == b""


async def test_a_large_body_is_no_large_head() -> None:
    size = 1_000_000
    head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
    async with serving() as port:
        assert (await answer(port, head + b"b" * size)).split(b" ")[1] == b"200"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(HEAD, b"HTTP/1.1 408 ", id="half a head"),
        pytest.param(b"\r\n", b"HTTP/1.1 408 ", id="empty lines"),
    ],
)
async def test_a_head_has_its_time(sent: bytes, expected: bytes) -> None:
    async with serving(ConnectionLimits(head_seconds=0.05)) as port:
        assert (await answer(port, sent))[:13] == expected


async def test_a_second_head_has_its_time_too() -> None:
    async with serving(ConnectionLimits(head_seconds=1.0)) as port:
        found = await answer(port, HEAD + END, HEAD)

    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in found


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Remember all connections, weakly; without the collector, so that circles show."""
    made: list[weakref.ref[ServerConnection]] = []
    begin = ServerConnection.connection_made

    def connection_made(self: ServerConnection, transport: asyncio.Transport) -> None:
        made.append(weakref.ref(self))
        begin(self, transport)

    monkeypatch.setattr(ServerConnection, "connection_made", connection_made)
    gc.disable()
    try:
        yield made
    finally:
        gc.enable()


async def test_nothing_is_left_of_a_connection_that_was_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with watched(monkeypatch) as made:
        async with serving() as port:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HEAD + headers(50, 1_000) + END)
                await reader.readuntil(b"\r\n\r\n")
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            await until(lambda: len(made) == 3 and not any(ref() for ref in made))


async def test_more_connections_than_may_be_are_refused_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "evenly.http")
    async with serving(ConnectionLimits(connections_max=10)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for _ in range(5):
            assert await answer(port) == b""
        for _, writer in held:
            writer.transport.abort()
        await until(lambda: is_served(port))

    assert [record.getMessage() for record in caplog.records] == [
        "new connections are refused for now: 10 connections are open, and no more may be"
    ]


async def is_served(port: int) -> bool:
    return (await answer(port, HEAD + b"connection: close\r\n" + END)).startswith(b"HTTP/1.1 200 ")


def room(limit: int, spare: int = 64, clock: Clock = lambda: 0.0) -> Room:
    limits = ConnectionLimits(spare_descriptors=spare)
    return Room(limits, descriptor_limit=lambda: limit, clock=clock)


@pytest.mark.parametrize(
    ("limit", "descriptor", "expected"),
    [
        pytest.param(1024, 959, True, id="the last before the spare ones"),
        pytest.param(1024, 960, False, id="the first of the spare ones"),
        pytest.param(100, 74, True, id="of a small limit a quarter is spared"),
        pytest.param(100, 75, False, id="and no less"),
    ],
)
def test_the_last_descriptors_are_kept_free(limit: int, descriptor: int, expected: bool) -> None:
    assert room(limit).admits(1, descriptor) is expected


def test_a_refusal_is_logged_once_until_there_was_none_for_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    full = room(8, clock=clock)
    for seconds in (0.0, 9.0, 9.0):
        clock.advance(seconds)
        full.has_descriptors(7)
    assert len(caplog.records) == 1

    clock.advance(11.0)
    full.has_descriptors(7)
    assert len(caplog.records) == 2


def test_a_look_finds_out_where_nobody_connects(caplog: pytest.LogCaptureFixture) -> None:
    room(1_000_000).look()
    assert not caplog.records

    room(4).look()  # No descriptor that is free is that low.
    assert "4 descriptors may be open, and all but the last 1 are" in caplog.text


@contextlib.contextmanager
def door(its_room: Room) -> Iterator[Door]:
    with Door(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        made.setblocking(False)
        made.room = its_room
        yield made


def test_a_door_closes_at_once_what_there_is_no_room_for() -> None:
    with door(room(4)) as closed, socket.create_connection(closed.getsockname(), SOON) as client:
        with pytest.raises(BlockingIOError):
            closed.accept()

        assert client.recv(1) == b""


def test_a_door_turns_away_also_without_any_descriptor_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        door(room(1_000_000)) as closed,
        socket.create_connection(closed.getsockname(), SOON) as first,
        socket.create_connection(closed.getsockname(), SOON) as second,
        contextlib.ExitStack() as taken,
    ):
        closed.accept()[0].close()  # It has a key now.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.dup(first.fileno()))
        with pytest.raises(BlockingIOError):
            closed.accept()

        assert second.recv(1) == b""
    assert caplog.messages == ["new connections are refused for now: Too many open files"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_max_bytes": 0},
        {"headers_max": 0},
        {"head_seconds": float("nan")},
        {"head_seconds": 0.0},
        {"stall_seconds": 0.0},
        {"pipelined_max": -1},
        {"connections_max": 0},
        {"spare_descriptors": -1},
    ],
)
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ConnectionLimits(**wrong)


async def test_limits_are_for_our_own_connections() -> None:
    with pytest.raises(UsageError, match="leave out http='h11'"):
        await serve(app, port=0, limits=ConnectionLimits(), http="h11")
    with pytest.raises(ConfigError, match="limits must be"):
        await serve(app, port=0, limits=5)  # type: ignore[arg-type]


# What an attacker finds.


SHORT = ConnectionLimits(stall_seconds=0.2)
POST = b"POST /?body HTTP/1.1\r\nhost: a\r\n"


async def test_a_body_that_stops_ends_the_connection() -> None:
    async with serving(SHORT, app=reads) as port:
        assert await answer(port, POST + b"content-length: 10\r\n\r\nhalf") == b""
        assert await answer(port, POST + b"content-length: 10\r\n\r\n") == b""


async def test_an_application_that_does_not_read_a_body_yet_is_no_stall() -> None:
    head = POST.replace(b"?body", b"?0.6") + b"expect: 100-continue\r\ncontent-length: 10\r\n\r\n"
    async with serving(SHORT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        found = await asyncio.wait_for(reader.readline(), SOON)
        writer.transport.abort()

    assert found == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"], ids=["kept alive", "closing"])
async def test_an_answer_that_nobody_reads_ends_the_connection(
    last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch) as made, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        async with serving(SHORT, app=large) as port:
            sock.connect(("127.0.0.1", port))
            sock.sendall(HEAD + last + END)
            await until(lambda: made and not any(ref() for ref in made))


async def test_more_pipelined_requests_than_may_wait_end_the_connection() -> None:
    request = b"GET /?3600 HTTP/1.1\r\nhost: a\r\n\r\n"
    async with serving(ConnectionLimits(pipelined_max=3)) as port:
        assert await answer(port, request * 5) == b""


async def test_as_many_pipelined_requests_as_may_wait_are_answered() -> None:
    request = b"GET /?0.01 HTTP/1.1\r\nhost: a\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    async with serving(ConnectionLimits(pipelined_max=3)) as port:
        assert (await answer(port, request * 3 + last)).count(b"HTTP/1.1 200 ") == 4


async def test_a_trailer_is_no_header() -> None:
    head = POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    body = b"1\r\na\r\n0\r\nevenly-customer: other\r\nx-forwarded-for: 10.0.0.1\r\n\r\n"
    async with serving(app=reads) as port:
        found = await answer(port, head, body)

    assert found.endswith(b"host transfer-encoding connection")


@pytest.mark.parametrize("method", [b"GET", b"CONNECT", b"POST"])
async def test_an_upgrade_that_is_declined_is_the_connections_last(method: bytes) -> None:
    head = method + b" / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n"
    async with serving() as port:
        found = await answer(port, head + HEAD + END)

    assert found.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in found


async def reads(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer with the names of the headers as they are then."""
    assert scope["type"] == "http"
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    names = b" ".join(name for name, _ in scope["headers"])
    headers = [(b"content-length", str(len(names)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": names})


LARGE = 8_000_000  # More than what the kernel keeps for both ends.


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"
    headers = [(b"content-length", str(LARGE).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LARGE)})
