"""Bodies of responses: framing, endings, back-pressure, and responses that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator

import pytest

from evenly.errors import UsageError
from evenly.http1.connection import BadResponse, Connection, End, Lost
from evenly.http1.reply import UNREAD_MAX_BYTES, Reply
from tests.http1.raw_server import (
    GET,
    OK,
    Peer,
    answers,
    in_time,
    nothing_left,
    raw_connection,
    until,
)

UNSIZED = b"HTTP/1.1 200 OK\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Begun:
    """Be a response that has begun to arrive, and the server that sends it."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.connection: Connection
        self.response: Reply
        self.peer: Peer


@contextlib.asynccontextmanager
async def begun(data: bytes) -> AsyncIterator[Begun]:
    """Ask, and get this much of the answer."""

    async def play(peer: Peer) -> None:
        it.peer = peer
        await peer.request()
        await peer.send(data)

    it = Begun()
    async with raw_connection(play) as (it.connection, _):
        it.response = await it.connection.request("GET", GET)
        it.response.on_end = it.ends.append
        yield it


async def test_chunks_are_returned_as_they_come() -> None:
    async with begun(CHUNKED + b"3\r\nabc\r\n") as it:
        assert await it.response.next_chunk() == b"abc"
        await it.peer.send(b"1\r\nd\r\n2\r\nef\r\n")
        assert await it.response.next_chunk() == b"def"
        assert it.ends == []
        await it.peer.send(b"0\r\n\r\n")
        assert await it.response.next_chunk() == b""
        assert await it.response.next_chunk() == b""
        assert it.ends == [End.COMPLETE]
        assert it.connection.is_idle


@pytest.mark.parametrize("ending", ["half_close", "close"])
async def test_a_body_without_a_length_ends_with_its_connection(ending: str) -> None:
    async with begun(UNSIZED + b"hello") as it:
        assert await it.response.next_chunk() == b"hello"
        await it.peer.send(b" world")
        getattr(it.peer, ending)()
        assert await it.response.read() == b" world"
        assert it.ends == [End.COMPLETE]
        assert not it.connection.is_open


async def test_a_body_without_a_length_that_is_reset_is_lost() -> None:
    async with begun(UNSIZED + b"hello") as it:
        assert await it.response.next_chunk() == b"hello"
        it.peer.reset()
        with pytest.raises(Lost):
            await it.response.next_chunk()
        assert it.ends == [End.LOST]


@pytest.mark.parametrize("ending", ["half_close", "close", "reset"])
@pytest.mark.parametrize("start", [SIZED + b"hello", CHUNKED + b"5\r\nhello\r\n"])
async def test_a_body_that_breaks_off_is_lost_after_what_came(start: bytes, ending: str) -> None:
    async with begun(start) as it:
        await until(lambda: it.response.unread == 5)
        getattr(it.peer, ending)()
        await until(lambda: it.ends)

        assert await it.response.next_chunk() == b"hello"
        for _ in range(2):
            with pytest.raises(Lost):
                await it.response.next_chunk()
            with pytest.raises(Lost):
                await it.response.read()
        assert it.ends == [End.LOST]
        assert not it.connection.is_open


async def test_a_reader_that_waits_is_told_of_the_loss() -> None:
    async with begun(SIZED) as it:
        reading = asyncio.create_task(it.response.read())
        await asyncio.sleep(0)
        it.peer.reset()
        with pytest.raises(Lost):
            await reading


async def test_a_bad_chunk_is_a_bad_response() -> None:
    async with begun(CHUNKED + b"3\r\nabc\r\n") as it:
        assert await it.response.next_chunk() == b"abc"
        await it.peer.send(b"zzz\r\n")
        with pytest.raises(BadResponse):
            await it.response.next_chunk()
        assert it.ends == [End.LOST]


async def test_bytes_after_a_body_close_the_connection_and_not_the_response() -> None:
    async with begun(SIZED + b"hello") as it:
        await it.peer.send(b"world" + OK)
        assert await it.response.read() == b"helloworld"
        assert it.ends == [End.COMPLETE]
        assert not it.connection.is_open


async def test_the_end_is_told_once_and_at_once_to_who_asks_late() -> None:
    async with raw_connection(answers(OK)) as (connection, _):
        response = await connection.request("GET", GET)
        first: list[End] = []
        second: list[End] = []
        response.on_end = first.append
        response.on_end = None
        response.on_end = second.append
        response.close()
        assert (first, second) == ([End.COMPLETE], [End.COMPLETE])
        assert response.on_end is None


async def test_a_closed_response_gives_its_connection_up() -> None:
    async with begun(SIZED + b"hello") as it:
        reading = asyncio.create_task(it.response.read())
        await asyncio.sleep(0)
        it.response.close()
        it.response.close()
        assert it.ends == [End.CLOSED]
        assert not it.connection.is_open
        with pytest.raises(Lost, match="closed here"):
            await reading
        await until(it.peer.reader.at_eof)


async def test_a_response_that_is_all_there_is_closed_without_its_connection() -> None:
    async with raw_connection(answers(OK, OK)) as (connection, _):
        response = await connection.request("GET", GET)
        response.close()
        assert connection.is_idle
        assert await (await connection.request("GET", GET)).read() == b"ok"
        assert await response.read() == b"ok"  # It arrived, so it may be read all the same.


@pytest.mark.parametrize("how", ["next_chunk", "read"])
async def test_a_read_that_is_cancelled_takes_nothing(how: str) -> None:
    async with begun(SIZED) as it:
        reading = asyncio.create_task(getattr(it.response, how)())
        await asyncio.sleep(0)
        await it.peer.send(b"hello") if how == "read" else None
        await asyncio.sleep(0.005)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert it.ends == []
        assert it.connection.is_open

        await it.peer.send(b"world" if how == "read" else b"helloworld")
        assert await it.response.read() == b"helloworld"


async def test_a_response_has_one_reader() -> None:
    async with begun(SIZED) as it:
        reading = asyncio.create_task(it.response.read())
        await asyncio.sleep(0)
        with pytest.raises(UsageError):
            await it.response.next_chunk()
        await it.peer.send(b"helloworld")
        assert await reading == b"helloworld"


async def test_a_slow_reader_stops_the_server() -> None:
    """What is unread stays within the limit and one read; the server's own buffers fill up."""
    total = 64 << 20
    sent = 0

    async def floods(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            await peer.send(b"x" * 65_536)
            sent += 65_536

    async with raw_connection(floods) as (connection, _):
        response = await connection.request("GET", GET)
        await until(response.is_full)
        before = -1
        while before != sent:  # Until nothing moves.
            before = sent
            await asyncio.sleep(0.05)
        transport = connection.transport
        assert transport is not None
        assert not transport.is_reading()
        # One read of a loop is at most 256 KiB.
        assert UNREAD_MAX_BYTES < response.unread <= UNREAD_MAX_BYTES + 262_144
        assert sent < total / 2

        got = len(await response.next_chunk())
        assert transport.is_reading()
        most = 0
        while chunk := await response.next_chunk():
            got += len(chunk)
            most = max(most, len(chunk))
        assert got == total
        assert most <= UNREAD_MAX_BYTES + 262_144
        assert connection.is_idle
        assert transport.is_reading()


async def test_who_reads_everything_is_not_slowed_down() -> None:
    total = 1 << 20
    response_bytes = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total + b"x" * total
    async with raw_connection(answers(response_bytes, OK)) as (connection, _):
        response = await connection.request("GET", GET)
        await until(response.is_full)
        assert len(await response.read()) == total
        assert await (await connection.request("GET", GET)).read() == b"ok"


async def test_the_loss_of_a_paused_connection_is_found_by_who_reads_on() -> None:
    async with begun(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 80_000) as it:
        await until(it.response.is_full)
        it.peer.close()
        with pytest.raises(Lost):
            await it.response.read()
        assert it.ends == [End.LOST]


async def test_a_response_that_is_dropped_unread_gives_its_connection_up() -> None:
    async with nothing_left(), begun(SIZED + b"hello") as it:
        del it.response
        await until(lambda: it.ends)
        assert it.ends == [End.CLOSED]
        assert not it.connection.is_open


async def test_a_response_that_only_its_own_listener_holds_is_dropped_all_the_same() -> None:
    class Holder:
        def __init__(self, response: Reply) -> None:
            self.response = response
            response.on_end = self.ended

        def ended(self, end: End) -> None:
            ends.append(end)

    ends: list[End] = []
    async with begun(SIZED) as it:
        Holder(it.response)
        del it.response
        await asyncio.sleep(0)  # The loop lets go of the future that brought it.
        gc.collect()
        await until(lambda: ends)
        assert ends == [End.CLOSED]
        assert not it.connection.is_open


async def test_a_response_that_dies_in_another_thread_is_closed_in_its_own() -> None:
    threads: list[int] = []
    async with begun(SIZED) as it:
        it.response.on_end = lambda _: threads.append(threading.get_ident())
        holder = [it.response]
        del it.response
        await asyncio.to_thread(holder.clear)
        await until(lambda: threads)
        assert threads == [threading.get_ident()]
        assert not it.connection.is_open


async def test_a_paused_response_that_is_dropped_frees_what_it_held() -> None:
    async with begun(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 80_000) as it:
        await until(it.response.is_full)
        del it.response
        await until(lambda: it.ends == [End.CLOSED])
        await until(lambda: it.connection.transport is None)


async def test_data_for_a_response_that_was_dropped_closes_the_connection() -> None:
    async with begun(SIZED) as it:
        await asyncio.sleep(0)
        it.response.on_end = (cycle := [it.response, it.ends]).append
        del it.response, cycle
        gc.collect()
        it.connection.received(memoryview(b"hello"))  # In the same turn of the loop as the drop.
        assert not it.connection.is_open


async def test_a_task_that_only_waits_for_a_body_is_not_collected() -> None:
    """Nobody holds the task but the future it waits for, and that must not be garbage."""
    results: list[bytes] = []

    async def reads(response: Reply) -> None:
        results.append(await response.read())

    async with begun(SIZED) as it:
        asyncio.create_task(reads(it.response))  # noqa: RUF006 -- the point
        del it.response
        await asyncio.sleep(0)
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0)
        await it.peer.send(b"helloworld")
        await until(lambda: results)
        assert results == [b"helloworld"]


async def test_a_second_response_is_kept_although_the_first_ones_reader_is_late() -> None:
    async with raw_connection(answers(SIZED + b"helloworld", SIZED)) as (connection, server):
        first = await connection.request("GET", GET)
        second = await connection.request("GET", GET)
        assert await first.read() == b"helloworld"
        reading = asyncio.create_task(second.read())
        await asyncio.sleep(0)
        await server.peers[0].send(b"othersalso")
        assert await in_time(reading) == b"othersalso"


async def test_a_repr_says_how_it_stands() -> None:
    async with begun(SIZED) as it:
        assert "arriving" in repr(it.response)
        it.response.close()
        assert "CLOSED" in repr(it.response)
