"""Connections to one address: who gets which, for how long, and what is told of them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from evenly.errors import ConfigError
from evenly.http1.connection import Connection, Lost, NotSent
from evenly.testing.clock import ManualClock
from tests.http1.pools import (
    OPENED,
    REFUSED,
    Watched,
    closed_port,
    counts,
    full_listener,
    pooled,
    watched,
)
from tests.http1.raw_server import (
    GET,
    OK,
    PATIENCE_SECONDS,
    Peer,
    RawServer,
    always_ok,
    answers,
    raw_server,
    until,
)


async def test_a_connection_is_used_again() -> None:
    async with pooled(always_ok) as (it, server):
        for _ in range(5):
            assert await it.get() == b"ok"
            assert counts(it.pool) == (0, 1, 0)
        assert len(server.peers) == 1
        assert it.events == [OPENED]


async def test_the_newest_idle_connection_is_taken() -> None:
    async with pooled(always_ok) as (it, _):
        one, two, three = [await it.pool.acquire() for _ in range(3)]
        assert counts(it.pool) == (3, 0, 0)
        for connection in (two, three, one):
            it.pool.release(connection)
        assert counts(it.pool) == (0, 3, 0)

        assert it.pool.try_acquire() is one
        assert it.pool.try_acquire() is three
        assert it.pool.try_acquire() is two
        assert it.pool.try_acquire() is None
        assert counts(it.pool) == (3, 0, 0)


async def test_a_connection_that_becomes_free_serves_who_waits_for_another() -> None:
    async with raw_server(always_ok) as server, watched(server.address) as it:
        first = await it.pool.acquire()
        waiting = asyncio.create_task(it.pool.acquire())
        await asyncio.sleep(0)
        assert it.pool.connecting == 1
        it.pool.release(first)
        assert await waiting is first
        # What was being opened for it comes to stand, and is kept.
        await until(lambda: it.pool.connecting == 0)
        assert counts(it.pool) == (1, 1, 0)


async def test_who_waits_longest_is_served_first() -> None:
    async with pooled(always_ok) as (it, _):
        first, second = await it.pool.acquire(), await it.pool.acquire()
        waiters = [asyncio.create_task(it.pool.acquire()) for _ in range(2)]
        await asyncio.sleep(0)
        it.pool.release(second)
        it.pool.release(first)
        assert [await waiter for waiter in waiters] == [second, first]


async def test_a_refused_connect_fails_only_those_for_whom_nothing_comes() -> None:
    async with watched(closed_port()) as it:
        results = await asyncio.gather(
            *(it.pool.acquire() for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, NotSent) for result in results)
        assert len({id(result) for result in results}) == 5
        assert "cannot connect to 127.0.0.1:" in str(results[0])
        assert isinstance(results[0], NotSent)
        assert isinstance(results[0].__cause__, OSError)
        assert counts(it.pool) == (0, 0, 0)
        assert it.events == [REFUSED]  # Told once for all that failed together.

        with pytest.raises(NotSent):
            await it.pool.acquire()
        assert it.events == [REFUSED, REFUSED]


async def test_a_failed_connect_does_not_fail_who_still_has_one_coming() -> None:
    """Two wait, two are being opened, one is served by a third: only the last failure counts."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        server = RawServer(always_ok)
        listener = await asyncio.start_server(server.play, "127.0.0.1", 0)
        async with watched(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}") as it:
            first = await it.pool.acquire()
            listener.close()
            waiting = [asyncio.create_task(it.pool.acquire()) for _ in range(2)]
            await asyncio.sleep(0)
            assert counts(it.pool) == (1, 0, 2)
            it.pool.release(first)
            assert await waiting[0] is first
            with pytest.raises(NotSent):
                await waiting[1]
            assert counts(it.pool) == (1, 0, 0)
            assert it.events == [OPENED]  # One stands.
        await until(lambda: not server.tasks)


async def test_a_connect_that_takes_too_long_is_given_up() -> None:
    with full_listener() as address:
        async with watched(address, connect_seconds=0.05) as it:
            with pytest.raises(NotSent):
                await it.pool.acquire()
            assert it.events == [REFUSED]
            assert counts(it.pool) == (0, 0, 0)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    with full_listener() as address:
        async with watched(address) as it:
            waiting = asyncio.create_task(it.pool.acquire())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert counts(it.pool) == (0, 0, 1)
            # The connect under way is nobody's now: the next one who comes counts on it.
            again = asyncio.create_task(it.pool.acquire())
            await asyncio.sleep(0)
            assert it.pool.connecting == 1
            it.pool.retire()
            with pytest.raises(NotSent):
                await again


async def test_a_wait_cancelled_as_it_is_served_hands_the_connection_on() -> None:
    async with pooled(always_ok) as (it, _):
        first = await it.pool.acquire()
        cancelled = asyncio.create_task(it.pool.acquire())
        following = asyncio.create_task(it.pool.acquire())
        await asyncio.sleep(0)
        it.pool.release(first)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await following is first
        assert it.pool.active == 1


async def test_a_connection_that_was_idle_for_too_long_is_not_used() -> None:
    clock = ManualClock()
    async with pooled(always_ok, idle_seconds=1.5, clock=clock) as (it, server):
        assert await it.get() == b"ok"
        clock.advance(1.49)
        assert await it.get() == b"ok"
        assert len(server.peers) == 1
        clock.advance(1.5)
        assert it.pool.try_acquire() is None
        assert it.pool.idle == 0
        assert await it.get() == b"ok"
        assert len(server.peers) == 2


async def test_idle_connections_are_closed_without_anybody_asking() -> None:
    async with pooled(always_ok, idle_seconds=0.02) as (it, server):
        connections = [await it.pool.acquire() for _ in range(3)]
        connections[0].idle_seconds = 1.5  # So much longer that a pause does not end both at once.
        for connection in connections:
            it.pool.release(connection)
        await until(lambda: it.pool.idle == 1)
        assert connections[0].is_open
        await until(lambda: it.pool.idle == 0)
        await until(lambda: not server.tasks)
        assert it.events == [OPENED]  # That is no event.


async def test_a_shorter_keep_alive_is_kept_behind_a_longer_one() -> None:
    def says(seconds: int) -> bytes:
        return OK.replace(b"OK\r\n", b"OK\r\nKeep-Alive: timeout=%d\r\n" % seconds)

    async with pooled(answers(says(300))) as (it, _):
        long, short = await it.pool.acquire(), await it.pool.acquire()
        await (await long.request("GET", GET)).read()
        assert long.idle_seconds == 299
        short.idle_seconds = 0.02
        it.pool.release(short)
        await until(lambda: it.pool.idle == 1)
        assert long.is_open


async def test_a_close_that_the_loop_has_not_seen_is_seen_before_the_request() -> None:
    """The loop was busy, the other side closed: the request goes on a new connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with watched(f"127.0.0.1:{listener.getsockname()[1]}") as it:
            first = await it.pool.acquire()
            accepted, _ = listener.accept()
            it.pool.release(first)
            await asyncio.sleep(0.003)
            accepted.close()

            second = await it.pool.acquire()

            assert second is not first
            assert not first.is_open
            assert counts(it.pool) == (1, 0, 0)


async def test_releasing_twice_or_something_in_use_does_no_harm() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()

    async with pooled(silent) as (it, server):
        one = await it.pool.acquire()
        it.pool.release(one)
        it.pool.release(one)
        assert counts(it.pool) == (0, 1, 0)
        assert it.pool.try_acquire() is one
        request = asyncio.create_task(one.request("GET", GET))
        await until(lambda: server.peers[0].received)
        it.pool.release(one)  # Nobody else may get it now.
        assert counts(it.pool) == (0, 0, 0)
        with pytest.raises(Lost):
            await request


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    server = RawServer(always_ok)
    listener = await asyncio.start_unix_server(server.play, path)
    async with watched(f"unix:{path}") as it:
        assert await it.get() == b"ok"
    listener.close()
    async with watched(f"unix:{path}") as it:
        with pytest.raises(NotSent):
            await it.get()


async def test_addresses_that_are_none_are_refused() -> None:
    for address in ("", "127.0.0.1", "127.0.0.1:0", "::1:80", "http://a:80"):
        with pytest.raises(ConfigError):
            Watched(address)


async def test_a_name_is_looked_up() -> None:
    async with raw_server(always_ok) as server, watched(f"localhost:{server.port}") as it:
        assert await it.get() == b"ok"


async def test_a_repr_counts() -> None:
    async with pooled(always_ok) as (it, server):
        connection: Connection = await it.pool.acquire()
        assert repr(it.pool) == f"<Pool {server.address} active=1 idle=0>"
        it.pool.release(connection)
        it.pool.close()
        assert repr(it.pool) == f"<Pool {server.address} active=0 idle=0 closed>"
