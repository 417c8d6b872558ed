from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from evenly.lab.dashboard.server import Dashboard
from evenly.lab.dashboard.stream import STREAMS_MAX
from tests.lab.dashboard.fakes import (
    SOON,
    FakeSource,
    authority,
    client_of,
    events,
    following,
    port_of,
    token_of,
    until,
)


@asynccontextmanager
async def not_reading(dashboard: Dashboard) -> AsyncIterator[asyncio.StreamReader]:
    """Ask for the stream with the least that a kernel buffers; nothing is read until asked."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port_of(dashboard)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**21)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(
        f"GET /api/frames HTTP/1.1\r\nHost: {authority(dashboard)}\r\n"
        f"evenly-token: {token_of(dashboard)}\r\n\r\n".encode()
    )
    try:
        yield reader
    finally:
        writer.transport.abort()


async def made(source: FakeSource, dashboard: Dashboard, first: int, last: int) -> None:
    """Make frames of 64 KB, one per turn of the loop or so, and wait until all are handed out."""
    for t in range(first, last + 1):
        source.make({"t": t, "fill": "f" * 65_536})
        await asyncio.sleep(0)
    with dashboard.history.subscribe() as probe:
        source.make({"t": "end"})
        async with asyncio.timeout(SOON):
            while await probe.next() != b'{"t":"end"}':
                pass


async def test_the_history_comes_first_and_then_each_frame(
    source: FakeSource, dashboard: Dashboard
) -> None:
    source.make({"t": 0.0}, {"t": 0.5})
    await until(lambda: "frames=2" in repr(dashboard))
    async with following(dashboard) as events:
        assert await anext(events) == ("history", [{"t": 0.0}, {"t": 0.5}])
        source.make({"t": 1.0, "events": [{"text": "one\nline, 10 × the load"}]}, {"t": 1.5})

        text = "one\nline, 10 × the load"
        assert await anext(events) == ("frame", {"t": 1.0, "events": [{"text": text}]})
        assert await anext(events) == ("frame", {"t": 1.5})


async def test_an_empty_history_is_a_list(dashboard: Dashboard) -> None:
    async with following(dashboard) as events:
        assert await anext(events) == ("history", [])


async def test_a_long_history_comes_whole(source: FakeSource, dashboard: Dashboard) -> None:
    frames: list[dict[str, object]] = [{"t": t, "fill": "f" * 5000} for t in range(240)]
    source.make(*frames)
    await until(lambda: "frames=240" in repr(dashboard))
    async with following(dashboard) as events:
        assert await anext(events) == ("history", frames)


async def test_everyone_gets_every_frame(source: FakeSource, dashboard: Dashboard) -> None:
    async with following(dashboard) as one, following(dashboard) as other:
        assert await anext(one) == await anext(other) == ("history", [])
        for t in range(3):
            source.make({"t": t})
            assert await anext(one) == await anext(other) == ("frame", {"t": t})


async def test_silence_is_filled_with_comments() -> None:
    source = FakeSource()
    async with (
        Dashboard(source, heartbeat_seconds=0.02) as dashboard,
        following(dashboard) as events,
    ):
        assert await anext(events) == ("history", [])
        assert await anext(events) == (":", None)
        assert await anext(events) == (":", None)
        source.make({"t": 1})
        while (event := await anext(events)) == (":", None):
            pass

        assert event == ("frame", {"t": 1})


async def test_who_does_not_read_holds_up_nobody_and_loses_the_oldest(
    source: FakeSource, dashboard: Dashboard
) -> None:
    async with not_reading(dashboard) as reader, following(dashboard) as events:
        assert await anext(events) == ("history", [])
        await until(lambda: dashboard.history.subscriptions == 2)
        # 26 MB, of which kernels take at most some 4 (tcp_wmem), and a transport 64 KB and a frame.
        await made(source, dashboard, 0, 399)

        last = -1
        async for name, frame in events:
            if frame["t"] == "end":
                break
            assert name == "frame"
            last = frame["t"]
        assert last == 399
        seen = await frames_until_the_end(reader)

    assert seen == sorted(set(seen))
    assert seen[-19:] == list(range(381, 400))  # Twenty wait, and the last is the end.
    assert len(seen) < 200


async def test_who_does_not_read_a_long_history_is_let_go_at_the_end(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(SOON):
        async with AsyncExitStack() as readers, Dashboard(source) as dashboard:
            await made(source, dashboard, 0, 239)
            await readers.enter_async_context(not_reading(dashboard))
            await until(lambda: dashboard.history.subscriptions == 1)

    assert dashboard.history.subscriptions == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_who_vanishes_leaves_nothing_behind(
    source: FakeSource, dashboard: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        async with following(dashboard) as events, not_reading(dashboard):
            await anext(events)
            await until(lambda: dashboard.history.subscriptions == 2)
        # No frame is needed to notice.
        await until(lambda: dashboard.history.subscriptions == 0)
    source.make({"t": 0})
    async with following(dashboard) as events:
        await anext(events)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_streams_are_bounded(dashboard: Dashboard, client: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as readers:
        for _ in range(STREAMS_MAX):
            await readers.enter_async_context(following(dashboard))
        async with asyncio.timeout(SOON):  # One stream more would never end.
            answer = await client.get("/api/frames")

        assert answer.status_code == 503
        assert answer.json() == {"error": "at most 32 pages can follow at a time: close one"}
    await until(lambda: dashboard.history.subscriptions == 0)
    async with following(dashboard) as events:
        assert (await anext(events))[0] == "history"


async def test_a_frame_that_is_no_json_is_left_out(
    source: FakeSource, dashboard: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(dashboard) as events:
        await anext(events)
        source.make({"t": float("nan")}, {"t": 1})

        assert await anext(events) == ("frame", {"t": 1})
    assert [text for text in caplog.messages if text.startswith("left out a frame")]


async def test_a_source_that_breaks_is_logged_and_pages_stay(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    async with Dashboard(source, heartbeat_seconds=0.02) as dashboard:
        async with following(dashboard) as events:
            await anext(events)
            source.make({"t": 0}, OSError("the fleet is gone"))
            while await anext(events) != ("frame", {"t": 0}):
                pass
            async with asyncio.timeout(SOON):
                while (event := await anext(events)) == (":", None):
                    pass

            assert event == ("ended", {})
            assert "no more frames" in caplog.messages
            assert await anext(events) == (":", None)  # It stays open.
        async with client_of(dashboard) as client:
            answer = await client.post("/api/control", json={"do": "reset"})
        assert answer.status_code == 200


async def test_the_end_ends_streams_well(source: FakeSource) -> None:
    async with AsyncExitStack() as readers:
        async with Dashboard(source) as dashboard:
            events = await readers.enter_async_context(following(dashboard))
            await anext(events)
            source.make({"t": 0})
            assert await anext(events) == ("frame", {"t": 0})

        # An answer cut off would raise here.
        assert [event async for event in events] == []
    assert source.follower_has_left


async def frames_until_the_end(reader: asyncio.StreamReader) -> list[int]:
    """Return which frames come; a frame is one chunk, and so one line."""
    seen: list[int] = []
    reader._transport.resume_reading()  # type: ignore[attr-defined] # asyncio has no other way

    async def lines() -> AsyncIterator[str]:
        async with asyncio.timeout(SOON):
            while line := await reader.readline():
                yield line.decode().rstrip("\r\n")

    async for name, frame in events(lines()):
        if name == "frame":
            if frame["t"] == "end":
                break
            seen.append(frame["t"])
    return seen


async def test_who_comes_after_the_end_of_the_source_is_told_too(
    source: FakeSource, dashboard: Dashboard
) -> None:
    source.make({"t": 0}, StopAsyncIteration())
    await until(lambda: source.follower_has_left)
    async with following(dashboard) as events:
        assert await anext(events) == ("history", [{"t": 0}])
        assert await anext(events) == ("ended", {})


async def test_what_was_written_is_not_kept(source: FakeSource, dashboard: Dashboard) -> None:
    source.make({"t": 0})
    await until(lambda: "frames=1" in repr(dashboard))
    async with following(dashboard) as events:
        await anext(events)
        (subscription,) = dashboard.history._subscriptions

        await until(lambda: subscription._past == ())
