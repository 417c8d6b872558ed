"""What a connection may cost, for who has no token too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from evenly.lab.dashboard import connection, server
from evenly.lab.dashboard.server import Dashboard
from tests.lab.dashboard.fakes import (
    SOON,
    FakeSource,
    authority,
    client_of,
    exchange,
    following,
    port_of,
    until,
)

SHORT = 0.05
# For those who do ask: more than a busy machine holds up a head that is on its way.
LONGER = 1.0


@asynccontextmanager
async def connected(
    dashboard: Dashboard,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(dashboard))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def drip(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, what: bytes) -> bytes:
    """Send a byte now and then; return what came until the server had enough."""
    sending = asyncio.ensure_future(_drip(writer, what))
    try:
        async with asyncio.timeout(SOON):
            return await reader.read()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _drip(writer: asyncio.StreamWriter, what: bytes) -> None:
    while True:
        writer.write(what)
        await asyncio.sleep(SHORT / 10)


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost: "], ids=["nothing", "half"])
async def test_who_does_not_ask_is_cut_off(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)

    with contextlib.suppress(ConnectionResetError):
        assert await exchange(dashboard, begin) == b""


async def test_who_asks_a_byte_at_a_time_is_cut_off(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)
    async with connected(dashboard) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        with contextlib.suppress(ConnectionResetError):
            assert await drip(writer, reader, b"x") == b""


async def test_who_was_refused_does_not_send_a_body_for_ever(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", LONGER)
    head = (
        f"POST /api/control HTTP/1.1\r\nHost: {authority(dashboard)}\r\n"
        "Content-Length: 100000\r\n\r\n"
    )
    async with connected(dashboard) as (reader, writer):
        writer.write(head.encode())
        with contextlib.suppress(ConnectionResetError):
            assert (await drip(writer, reader, b"x")).startswith(b"HTTP/1.1 401 ")


async def test_whoever_asked_has_all_the_time(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", LONGER)
    async with (
        Dashboard(source, heartbeat_seconds=LONGER / 10) as dashboard,
        following(dashboard) as events,
    ):
        # Twice as long as a head may take.
        seen = [await anext(events) for _ in range(21)]

    assert [name for name, _ in seen] == ["history", *":" * 20]


@pytest.mark.parametrize(
    ("idle_seconds", "head_seconds"),
    [
        pytest.param(SHORT, 3600.0, id="in order"),
        pytest.param(3600.0, LONGER, id="also one that takes nothing, for which that would wait"),
    ],
)
async def test_a_connection_that_idles_after_an_answer_is_closed(
    source: FakeSource,
    monkeypatch: pytest.MonkeyPatch,
    idle_seconds: float,
    head_seconds: float,
) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", idle_seconds)
    monkeypatch.setattr(connection, "HEAD_SECONDS", head_seconds)
    async with Dashboard(source) as dashboard, connected(dashboard) as (reader, writer):
        writer.write(f"HEAD / HTTP/1.1\r\nHost: {authority(dashboard)}\r\n\r\n".encode())
        async with asyncio.timeout(SOON):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionResetError):
                await reader.read()


async def test_a_connection_serves_one_request_after_the_other(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        assert (await client.get("/api/describe")).status_code == 200


async def test_connections_are_bounded(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection, server):
        monkeypatch.setattr(module, "CONNECTIONS_MAX", 8)
    async with AsyncExitStack() as idle, Dashboard(source) as dashboard:
        for _ in range(4):
            await idle.enter_async_context(connected(dashboard))
        async with client_of(dashboard) as client:
            assert (await client.get("/")).status_code == 503
        for _ in range(4):
            reader, _ = await idle.enter_async_context(connected(dashboard))
        await until(lambda: len(_connections(dashboard)) == 8)
        reader, _ = await idle.enter_async_context(connected(dashboard))
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(SOON):
                assert await reader.read() == b""
        assert len(_connections(dashboard)) == 8


def _connections(dashboard: Dashboard) -> set[object]:
    assert dashboard._server is not None
    return {*dashboard._server._server.server_state.connections}


@pytest.mark.parametrize(
    "request_line",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"],
    ids=["no HTTP", "an upgrade"],
)
async def test_nobody_without_the_link_writes_to_the_log(
    dashboard: Dashboard, caplog: pytest.LogCaptureFixture, request_line: bytes
) -> None:
    async with connected(dashboard) as (reader, writer):
        writer.write(request_line)
        async with asyncio.timeout(SOON):
            answer = await reader.readline()

    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
