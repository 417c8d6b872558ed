"""What a pool tells of its connections, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from evenly.http1.connection import Lost, NotSent
from tests.http1.pools import LOST, OPENED, REFUSED, closed_port, counts, pooled, watched
from tests.http1.raw_server import GET, OK, PATIENCE_SECONDS, Peer, RawServer, always_ok, until


async def test_a_server_that_closes_idle_connections_is_no_event() -> None:
    async def closes(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await until(lambda: is_read)
        peer.close()

    is_read = False
    async with pooled(closes) as (it, server):
        assert await it.get() == b"ok"
        is_read = True
        await until(lambda: it.pool.idle == 0)
        assert await it.get() == b"ok"
        assert len(server.peers) == 2
        assert it.events == [OPENED]


async def test_a_first_connection_is_told_and_a_refused_one_too() -> None:
    async with pooled(always_ok) as (it, _):
        it.pool.open()
        await until(lambda: it.events)
        assert it.events == [OPENED]
        assert counts(it.pool) == (0, 1, 0)
        it.pool.open()  # Each time it is asked there is one answer.
        await until(lambda: len(it.events) == 2)
        assert it.events == [OPENED, OPENED]
        assert it.pool.idle == 2
    async with watched(closed_port()) as it:
        for _ in range(2):
            it.events.clear()
            it.pool.open()
            await until(lambda: it.events)
            assert it.events == [REFUSED]


@pytest.mark.parametrize("ending", ["reset", "close"])
async def test_the_last_connection_breaks_and_the_server_is_gone(ending: str) -> None:
    async def breaks(peer: Peer) -> None:
        await peer.request()
        await until(lambda: is_gone)
        getattr(peer, ending)()

    is_gone = False
    async with asyncio.timeout(PATIENCE_SECONDS):
        server = RawServer(breaks)
        listener = await asyncio.start_server(server.play, "127.0.0.1", 0)
        async with watched(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}") as it:
            connection = await it.pool.acquire()
            request = asyncio.create_task(connection.request("GET", GET))
            await until(lambda: server.peers and server.peers[0].received)
            listener.close()
            is_gone = True
            with pytest.raises(Lost):
                await request
            await until(lambda: len(it.events) == 2)
            assert it.events == [OPENED, LOST]
            with pytest.raises(NotSent):
                await it.pool.acquire()
            assert it.events == [OPENED, LOST, REFUSED]
        await until(lambda: not server.tasks)


async def test_the_last_connection_breaks_and_the_server_is_there() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with pooled(breaks) as (it, server):
        with pytest.raises(Lost):
            await it.get()
        await until(lambda: it.pool.idle == 1)  # The one that was opened to see.
        assert it.events == [OPENED]
        assert len(server.peers) == 2


async def test_a_connection_that_we_close_is_not_thought_broken() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()

    async with pooled(silent) as (it, server):
        connection = await it.pool.acquire()
        request = asyncio.create_task(connection.request("GET", GET))
        await until(lambda: server.peers[0].received)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert counts(it.pool) == (0, 0, 0)
        assert it.events == [OPENED]


async def test_a_retired_pool_lets_requests_end() -> None:
    async def waits(peer: Peer) -> None:
        await peer.request()
        await until(lambda: is_retired)
        await peer.send(OK)

    is_retired = False
    async with pooled(waits) as (it, server):
        busy, idle = await it.pool.acquire(), await it.pool.acquire()
        it.pool.release(idle)
        request = asyncio.create_task(busy.request("GET", GET))
        await until(lambda: server.peers[0].received)
        it.pool.retire()
        assert it.pool.is_closed
        assert not idle.is_open
        assert counts(it.pool) == (1, 0, 0)
        with pytest.raises(NotSent):
            await it.pool.acquire()
        assert it.pool.try_acquire() is None
        is_retired = True
        assert await (await request).read() == b"ok"
        assert counts(it.pool) == (0, 0, 0)
        await it.pool.closed()
        it.pool.open()
        assert counts(it.pool) == (0, 0, 0)
        assert it.events == [OPENED]


async def test_a_closed_pool_ends_requests() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()

    async with pooled(silent) as (it, server):
        busy = await it.pool.acquire()
        request = asyncio.create_task(busy.request("GET", GET))
        waiting = asyncio.create_task(it.pool.acquire())
        await asyncio.sleep(0)
        it.pool.close()
        with pytest.raises(Lost):
            await request
        with pytest.raises(NotSent):
            await waiting
        await it.pool.closed()
        await until(lambda: not server.tasks)
        it.pool.close()
        assert it.events == [OPENED]
